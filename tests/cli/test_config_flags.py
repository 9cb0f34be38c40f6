"""Flags made from the settings: one for each, their values, their help and their errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from onward.cli.config_flags import add_config_flags, config_parameters, flag_name, given_settings
from onward.configs.setting_kind import setting_kind
from onward.errors import OptionError
from onward.runner.config import TrainConfig

found: dict[str, Any] = {}


def command(model: str, **given: Any) -> None:
    found.clear()
    found.update(given_settings(given, TrainConfig))


APP = typer.Typer(add_completion=False)
APP.command()(add_config_flags(command, TrainConfig, leave_out=("model",)))
COMMAND = typer.main.get_command(APP)


def invoke(*words: str) -> None:
    COMMAND.main(["m.onnx", *words], standalone_mode=False)


EXAMPLES: dict[str, tuple[list[str], Any]] = {  # words after the flag: the value
    "data": (["a,b.csv"], "a,b.csv"),
    "inputs": (["image=pixels+more"], {"image": ["pixels", "more"]}),
    "types": (["zip=text"], {"zip": "text"}),
    "batch_size": (["auto"], "auto"),
    "learning_rate": (["1e-3"], 0.001),
    "layer_decay": (["0.9"], 0.9),
    "track": (["wandb,mlflow"], ["wandb", "mlflow"]),
    "zero": (["2"], 2),
    "memory_level": (["2"], 2),
}


def example(name: str) -> tuple[list[str], Any]:
    """A value of a setting: the words of the command line, and what they mean."""
    kind = setting_kind(TrainConfig, name)
    if name in EXAMPLES:
        return EXAMPLES[name]
    if kind.is_list:
        return ["a,b"], ["a", "b"]
    if kind.number is not None:
        return (["7"], 7) if kind.number is int else (["0.5"], 0.5)
    return ([kind.choices[-1]], kind.choices[-1]) if kind.choices else (["word"], "word")


@pytest.mark.parametrize("name", [each for each in TrainConfig.model_fields if each != "model"])
def test_flag_sets_only_its_setting(name: str) -> None:
    if setting_kind(TrainConfig, name).is_bool:
        for flag, value in ((flag_name(name), True), (f"--no-{flag_name(name)[2:]}", False)):
            invoke(flag)
            assert found == {name: value}
        return
    words, value = example(name)
    invoke(flag_name(name), *words)
    assert found == {name: value} and type(found[name]) is type(value)


def test_arguments_that_were_not_given_are_not_settings() -> None:
    invoke()
    assert found == {}


def test_lists_and_pairs_are_repeatable() -> None:
    words = ["--freeze", "a.*,b", "--freeze", "c", "--data", "a.csv", "--data", "b.csv"]
    words += ["--inputs", "x=a", "--inputs", "y=b+c", "--ema", "none"]
    invoke(*words)
    assert found == {
        "freeze": ["a.*", "b", "c"],
        "data": ["a.csv", "b.csv"],
        "inputs": {"x": ["a"], "y": ["b", "c"]},
        "ema": None,
    }


def test_help_has_every_explanation_in_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    invoke("--help")
    plain = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", capsys.readouterr().out)
    for name, field in TrainConfig.model_fields.items():
        if name != "model":
            assert flag_name(name)[:20] in plain and str(field.description)[:20] in plain, name
    assert all(group in plain for group in ("Data", "Learning", "Model", "Evaluation", "Run"))
    assert "Default: adamw" in plain and "One of sgd, adam, adamw" in plain and "best|last" in plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adamv"}, "--optimizer cannot be 'adamv'\ndid you mean 'adam' or 'adamw'?"),
        ({"epochs": "x"}, "--epochs cannot be 'x'"),
        ({"batch_size": "0"}, "--batch-size cannot be '0'"),
        (
            {"batch_size": "1.5"},
            "--batch-size cannot be '1.5': it must be a whole number, or 'auto'",
        ),
        ({"learning_rate": "x"}, "--learning-rate cannot be 'x': it must be a number, or 'auto'"),
        ({"inputs": ["image"]}, "--inputs takes NAME=VALUE"),
        ({"track": ["wandB"]}, "--track cannot be 'wandB'\ndid you mean 'wandb'"),
    ],
)
def test_wrong_value_is_refused_with_the_flag(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        given_settings(given, TrainConfig)
    assert message in str(error.value)


def test_choices_are_completed() -> None:
    by_name = {each.name: each for each in config_parameters(TrainConfig)}
    option = by_name["optimizer"].annotation.__metadata__[0]
    assert option.autocompletion("ada") == ["adam", "adamw", "adagrad", "adafactor"]
    assert by_name["batch_size"].annotation.__metadata__[0].autocompletion("a") == ["auto"]
