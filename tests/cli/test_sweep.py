"""onward sweep: the table, the files, config files, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onward.cli.sweep
from onward.errors import OptionError
from tests.cli.conftest import Call, is_one_line


@pytest.fixture(autouse=True)
def with_fake_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake = "tests.runner.sweep.fake_trials:quadratic"
    monkeypatch.setattr(onward.cli.sweep, "_run_trial", fake)


def test_trials_are_printed_best_first_with_the_next_command(call: Call, tmp_path: Path) -> None:
    called = call(
        "sweep", "m.onnx", "--data", "d.csv", "--target", "y", "--trials", 6,
        "--search", "learning_rate=1e-3..1:log", "--search", "optimizer=adamw,sgd",
        "--timeout", "10m",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert "6 trials, the best first" in called.out and "val_loss" in called.out
    assert "next: onward train --config sweeps/m-1/best.toml" in called.out
    assert "page: sweeps/m-1/sweep.html" in called.out and "what mattered: " in called.out
    assert called.err.count("trial ") == 6
    assert (tmp_path / "sweeps/m-1/sweep.html").is_file()
    config = (tmp_path / "sweeps/m-1/best.toml").read_text()
    assert 'model = "m.onnx"' in config and 'target = "y"' in config


def test_config_file_has_the_search_and_flags_replace_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'model = "m.onnx"\nepochs = 2\n[search]\nlearning_rate = [0.1, 0.2]\nepochs = [1, 2]\n'
    )
    called = call(
        "sweep", "--config", "s.toml", "--grid", "--search", "epochs=5", "--json", "--folder", "f"
    )
    assert called.code == 0, called.err
    result = json.loads(called.out)
    assert {trial["settings"]["epochs"] for trial in result["trials"]} == {5}
    assert result["trials"][0]["settings"]["learning_rate"] == 0.1 and len(result["trials"]) == 2


def test_ablation_from_the_command_line(call: Call) -> None:
    called = call("sweep", "m.onnx", "--ablate", "flip=true,false", "--ablate", "ema=none,0.999")
    assert called.code == 0 and "3 trials" in called.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m.onnx"], ["there is nothing to search", "--search"]),
        (["m.onnx", "--search", "lerning_rate=1,2"], ["'lerning_rate'", "learning_rate"]),
        (["m.onnx", "--search", "epochs"], ["--search takes NAME=VALUES"]),
        (["--search", "epochs=1,2"], ["which model?"]),
        (["m.onnx", "--timeout", "soon"], ["--timeout takes a time", "'soon'"]),
        (["m.onnx", "--config", "no.toml"], ["no config at no.toml"]),
        (["m.onnx", "--resume", "--search", "epochs=1,2"], ["which sweep should continue"]),
        (["m.onnx", "--search", "epochs=1,2", "--epochs", "0"], ["--epochs cannot be '0'"]),
    ],
)
def test_wrong_arguments_are_one_line(call: Call, arguments: list[str], words: list[str]) -> None:
    assert is_one_line(call("sweep", *arguments), *words)


def test_help_lists_the_settings_of_training(call: Call) -> None:
    shown = call("sweep", "--help").out
    assert "--learning-rate" in shown and "--search" in shown and "--runs" not in shown


def test_times_are_read_with_units() -> None:
    assert onward.cli.sweep.read_seconds("1d") == 86400
    with pytest.raises(OptionError, match="such as 90s"):
        onward.cli.sweep.read_seconds("10 minutes")
