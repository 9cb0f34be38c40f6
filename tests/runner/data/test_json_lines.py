"""JSON Lines: types, arrays, missing values, and errors with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.json_lines import JsonLinesDataset


def write(folder: Path, *rows: Any, raw: str = "") -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + raw)
    return path


def test_types_are_guessed(tmp_path: Path) -> None:
    one = {"i": 1, "f": 1, "b": True, "t": "é", "v": [1, 2], "r": [1.5], "m": 3}
    other = {"f": 2.5, "i": 2, "b": False, "t": None, "v": [3, 4], "r": [1, 2], "extra": None}
    data = JsonLinesDataset(write(tmp_path, one, other))
    assert {name: str(column) for name, column in data.columns.items()} == {
        "i": "int64", "f": "float64", "b": "bool", "t": "text", "v": "int64[2]",
        "r": "float64[?]", "m": "float64", "extra": "text",
    }  # fmt: skip
    batch = data.read([1, 0])
    assert batch["t"].tolist() == ["", "é"] and batch["v"].tolist() == [[3, 4], [1, 2]]
    assert [row.tolist() for row in batch["r"]] == [[1, 2], [1.5]]
    np.testing.assert_array_equal(batch["m"], [np.nan, 3])
    assert data.read([1], ["b"])["b"].tolist() == [False]


def test_types_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": 1, "b": {"c": 1}}, {"a": None, "b": 2})
    data = JsonLinesDataset(path, types={"a": "float", "b": "text"})
    assert data.read([0, 1])["b"].tolist() == ['{"c": 1}', "2"]


WRONG = [
    ((), '[1]\n', r"line 1 is not a JSON object: '\[1\]'"),
    (({"a": 1},), '{"a": 2', "line 2 is not JSON: .*\nthe file is truncated"),
    ((), '{"a" 1}\n{}\n', "line 1 is not JSON: .*\nwrite one JSON object in each line"),
    (({"a": 1}, {"a": "x"}), "", "line 2: column 'a' has 'x', which is not a number"),
    (({"a": [1]}, {"a": 2}), "", "line 2: column 'a' has 2, which is not of 1 dimensions"),
    ((), "", "data.jsonl is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "raw", "message"), WRONG)
def test_a_wrong_file_is_refused_when_it_is_opened(
    tmp_path: Path, rows: tuple[Any, ...], raw: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        JsonLinesDataset(write(tmp_path, *rows, raw=raw))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1], [2, 3]], "line 1: column 'a' has .* lists of equal lengths"),
        ({"b": 1}, "line 1: column 'a' has {'b': 1}, which is not a number"),
        (["x", "y"], r"line 1: column 'a' has \['x', 'y'\], which is not a number"),
    ],
)
def test_column_that_cannot_be_read_is_refused_where_it_is_read(
    tmp_path: Path, value: Any, message: str
) -> None:
    data = JsonLinesDataset(write(tmp_path, {"a": value, "n": 1}, {"a": None, "n": 2}))
    assert {name: each.tolist() for name, each in data.read([0, 1]).items()} == {"n": [1, 2]}
    with pytest.raises(DataError, match=message):
        data.read([0], ["a"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"n": 1.5}, "line 2: column 'n' has 1.5, which is not int64"),
        ({"n": True}, "line 2: column 'n' has True, which is not int64"),
        ({}, "line 2: column 'n' has no value"),
        ({"n": 1, "v": [1, 2, 3]}, "line 2: column 'v' has .* of the shape of other rows"),
    ],
)
def test_a_wrong_row_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, message: str
) -> None:
    monkeypatch.setattr("onward.runner.data.json_lines._SAMPLE", 1)
    good = {"n": 1, "v": [1, 2]}
    data = JsonLinesDataset(write(tmp_path, good, value, good))
    with pytest.raises(DataError, match=message):
        data.read([0, 1])
