"""Config files: reading TOML and YAML, their errors, and configs written as TOML."""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.configs.setting_kind import setting_group, setting_kind
from onward.configs.setting_text import read_setting
from onward.errors import FileMissing, OptionError, PackageMissing
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import config_to_toml, read_config

NAMES = list(TrainConfig.model_fields)


@cache
def values(name: str) -> st.SearchStrategy[Any]:
    """Values of a setting, made only from its type; the config may refuse a number."""
    kind = setting_kind(TrainConfig, name)
    texts = st.text(st.characters(codec="utf-8"), max_size=6)
    names = st.sampled_from(kind.choices) if kind.choices else texts
    possible: list[st.SearchStrategy[Any]] = [st.just(TrainConfig.model_fields[name].default)]
    if kind.is_bool:
        possible.append(st.booleans())
    if kind.number is not None:
        numbers = [st.integers(1, 10**20), st.floats(0.0, 1.0, exclude_max=True)]
        possible.append(numbers[0] if kind.number is int else numbers[1])
    if kind.is_list:
        possible.append(st.lists(names, max_size=3))
    if kind.is_mapping:
        inner = st.lists(texts, max_size=2) if kind.lists_in_mapping else texts
        possible.append(st.dictionaries(texts, inner, max_size=2))
    if kind.is_text or (kind.choices and not kind.is_list):
        possible.append(names)
    return st.one_of(possible)


def is_valid(name: str, value: Any) -> bool:
    try:
        make_config({name: value})
    except OptionError:
        return False
    return True


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_config_written_as_toml_reads_back_equal(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    drawn = {name: data.draw(values(name)) for name in names}
    config = make_config({name: value for name, value in drawn.items() if is_valid(name, value)})
    for everything in (False, True):
        assert make_config(tomllib.loads(config_to_toml(config, everything))) == config


def test_every_setting_is_shown_with_its_explanation() -> None:
    text = config_to_toml(make_config(epochs=7), everything=True)
    for name, field in TrainConfig.model_fields.items():
        assert f"# {field.description}\n" in text and f"{name} =" in text
    assert text.index("epochs = 7") < text.index("# -- Data (defaults)")
    assert "# learning_rate =\n" in text
    assert "# -- Learning (defaults)" in text and setting_group(TrainConfig, "epochs") == "Learning"


def test_toml_and_yaml_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('epochs = 5\nlearning_rate = 1e-4\n[inputs]\nx = ["a", "b"]\n')
    (tmp_path / "a.yaml").write_text("epochs: 5\nlearning_rate: 1e-4\ninputs: {x: [a, b]}\n")
    assert make_config(read_config(tmp_path / "a.toml")) == make_config(
        read_config(tmp_path / "a.yaml")
    )
    (tmp_path / "empty.yml").write_text("# nothing\n")
    assert read_config(tmp_path / "empty.yml") == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "epochs = 5\nepochs 6\n", r"a\.toml, line 2: "),
        ("a.toml", "epochs = 5\nname = [", r"a\.toml, line 2: "),
        ("a.yaml", "epochs: 5\nx: [1\ny: 2\n", r"a\.yaml, line \d: "),
        ("a.yaml", "- 1\n", r"a\.yaml has no settings"),
        ("a.toml", "\nlearning_rat = 1\n", r"line 2: there is no setting 'learning_rat'\n.*_rate'"),
        (
            "a.yaml",
            "epochs: 1\noptimizer: adamv\n",
            r"line 2: optimizer cannot be 'adamv'\n",
        ),
        ("a.toml", "epochs = 0\n", r"a\.toml, line 1: epochs cannot be 0"),
        ("a.toml", "[serch]\n", r"line 1: there is no setting 'serch'"),
        ("a.json", "{}", r"a\.json is not a config"),
    ],
)
def test_error_names_the_file_and_the_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(OptionError, match=message):
        read_config(tmp_path / name)


def test_tables_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[search]\nepochs = [1, 2]\n")
    assert read_config(tmp_path / "a.toml", tables=["search"]) == {"search": {"epochs": [1, 2]}}


def test_missing_file_and_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="is not UTF-8"):
        read_config(tmp_path / "config.toml")
    with pytest.raises(FileMissing, match=r"no config at .*confg"):
        read_config(tmp_path / "confg.toml")


def test_missing_yaml_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("epochs: 1\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(PackageMissing, match=r"onward\[train\]"):
        read_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch_size", "16", 16),
        ("batch_size", "auto", "auto"),
        ("learning_rate", "1e-3", 0.001),
        ("learning_rate", "none", None),
        ("mixed_precision", "none", "none"),
        ("standardize", "false", False),
        ("flip", "true", True),
        ("target", "none", "none"),  # a column may have this name
        ("metrics", "accuracy+f1", ["accuracy", "f1"]),
        ("data", "a.csv", "a.csv"),
        ("types", "zip=text;n=int", {"zip": "text", "n": "int"}),
    ],
)
def test_setting_is_read_from_text(name: str, text: str, value: Any) -> None:
    assert read_setting(TrainConfig, name, text) == value


def test_pairs_without_a_value_are_refused() -> None:
    with pytest.raises(OptionError, match="inputs takes NAME=VALUE, such as image=pixels"):
        read_setting(TrainConfig, "inputs", "image")
