"""Settings from text: lists, pairs, tables in JSON, and the word none."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from onward.configs.setting_text import is_none, read_list, read_mapping, read_setting
from onward.errors import OptionError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sizes: list[int] = []
    names: list[str] | Literal["auto"] | None = None
    paths: str | list[str] = ""
    parts: list[Inner] = []
    axes: dict[str, int] = {}
    tables: dict[str, Inner] = {}
    port: int | None = 1
    title: str | None = None


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("sizes", ["1,2", "3"], [1, 2, 3]),
        ("names", ["auto"], "auto"),
        ("names", ["none"], None),
        ("names", ["a, b"], ["a", "b"]),
        ("paths", ["a,b"], "a,b"),
        ("paths", ["a", "b"], ["a", "b"]),
        ("parts", ['{"size": 2}', "{}"], [Inner(size=2), Inner()]),
        ("parts", ['[{"size": 2}]'], [Inner(size=2)]),
    ],
)
def test_lists_are_read(name: str, texts: list[str], value: Any) -> None:
    assert read_list(Example, name, texts) == value


def test_pairs_and_tables_are_read() -> None:
    assert read_mapping(Example, "axes", ["x=1", "y=0"]) == {"x": 1, "y": 0}
    assert read_mapping(Example, "tables", ['a={"size": 3}']) == {"a": Inner(size=3)}


def test_none_is_a_value_where_a_setting_may_be_none_and_is_no_text() -> None:
    assert read_setting(Example, "port", "None") is None
    assert read_setting(Example, "title", "none") == "none"
    assert not is_none(Example, "sizes", "none") and not is_none(Example, "port", 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tables", "a={", r"tables cannot be '\{': it must be JSON"),
        ("tables", "a", r"tables takes NAME=VALUE, such as name=\{"),
        ("tables", 'a={"sze": 1}', r"no setting 'sze' in tables\.a\ndid you mean 'size'"),
        ("tables", 'a={"size": "x"}', r"tables\.a\.size cannot be 'x': it must be a valid integer"),
        ("axes", "x=y", r"axes cannot be \{'x': 'y'\}: it must be a valid integer"),
    ],
)
def test_errors_name_the_place(name: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_mapping(Example, name, [text])
