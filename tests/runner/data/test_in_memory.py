"""Data in memory: arrays, tables, rows of Python."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onward.errors import ColumnMissing, DataError
from onward.runner.data.dataset import UNREADABLE
from onward.runner.data.in_memory import ArrayDataset, from_rows
from onward.runner.data.open_data import open_data


def test_arrays_are_columns() -> None:
    data = open_data({"x": np.arange(6).reshape(3, 2), "t": ["a", "b", "c"], "f": [1, 2.5, 3]})
    assert [str(column) for column in data.columns.values()] == ["int64[2]", "text", "float64"]
    assert data.read([2, 0], ["t"])["t"].tolist() == ["c", "a"]


def test_rows_are_dicts_tuples_or_named_tuples() -> None:
    def stream() -> Iterator[dict[str, Any]]:
        for n in range(3):
            yield {"x": np.full(2, n), "name": str(n), "ragged": [0] * n}

    data = open_data(stream())
    batch = data.read([2])
    assert batch["x"].tolist() == [[2, 2]] and batch["name"].tolist() == ["2"]
    assert batch["ragged"][0].tolist() == [0, 0] and str(data.columns["ragged"]) == "float64[?]"
    assert list(open_data([(1, 2, "x"), (3, 4, "y")]).columns) == [
        "column_0", "column_1", "column_2"
    ]  # fmt: skip
    point = namedtuple("point", "width height")
    assert list(open_data([point(1, 2)]).columns) == ["width", "height"]


def test_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    data = open_data(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))
    assert data.read([1])["b"].tolist() == ["y"]


def test_a_table_like_one_of_pandas() -> None:
    class Series:
        def to_numpy(self) -> Any:
            return np.array([1, 2])

    class DataFrame(dict[str, Series]):
        __module__ = "pandas.core.frame"
        columns = ("a",)

    from onward.runner.data.in_memory import from_table

    assert from_table(DataFrame(a=Series())).read([1])["a"].tolist() == [2]


def test_rows_have_a_memory_limit() -> None:
    endless = ({"x": np.zeros(1000)} for _ in iter(int, 1))
    with pytest.raises(DataError, match=r"limit of 97.7 KiB after 13 of them.*\nwrite them to a f"):
        open_data(endless, memory_limit=100_000)


WRONG: list[tuple[Any, type[Exception], str]] = [
    ([], DataError, "the data is empty: it has no rows"),
    ([{"a": 1}, {"b": 1}], ColumnMissing, "row 1 has the columns 'b', but row 0 has 'a'"),
    ([1, 2], DataError, "row 0 is of the class int\nevery row must be a dict"),
    ([{"a": 1}, {"a": "x"}], DataError, "row 1, column 'a': 'x' is not a number"),
    ([{"a": [1]}, {"a": 1}], DataError, "row 1, column 'a': 1 is not .* of 1 dimensions"),
    ([{"a": [1]}, {"a": None}], DataError, "row 1, column .a.: None is not a number"),
    ({}, DataError, "has no arrays"),
    ({"a": [1], "b": [1, 2]}, DataError, "'b' has 2 rows, but 'a' has 1"),
    ({"a": np.zeros(0)}, DataError, "is empty: its arrays have no rows"),
    ({"a": np.array(1)}, DataError, "'a' is a single value"),
    ({"a": np.array(["x", 1], object)}, DataError, "row 0, column .a.: .x. is not a number"),
    ({"a": np.zeros(2, complex)}, DataError, "column 'a' is of the type complex128"),
    (b"bytes", DataError, "no data can be read from an object of the class bytes"),
    (7, DataError, "no data can be read from an object of the class int"),
]


@pytest.mark.parametrize(("source", "error", "message"), WRONG)
def test_wrong_data_is_refused(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_data(source)


def test_wrong_positions_and_columns_are_refused() -> None:
    data = ArrayDataset({"label": np.arange(3)})
    with pytest.raises(DataError, match="has no row 3: it has 3, from 0 to 2"):
        data.read([0, 3])
    with pytest.raises(DataError, match="positions must be a list of whole numbers"):
        data.read([0.5])
    with pytest.raises(ColumnMissing, match=r"no column 'lable'\ndid you mean 'label'"):
        data.read([0], ["lable"])


@pytest.mark.parametrize("value", [{"page": 1}, ["a", "b"], [{"page": 1}]])
def test_column_that_cannot_be_read_is_refused_where_it_is_read(value: Any) -> None:
    data = open_data([{"meta": value, "x": 1}, {"meta": None, "x": 2}])
    assert data.read([0, 1]).keys() == {"x"} and data.columns["meta"].dtype == UNREADABLE
    with pytest.raises(DataError, match=r"row 0, column 'meta': .* is not a text"):
        data.read([0], ["meta"])


def test_ragged_arrays_keep_their_rows() -> None:
    data = from_rows([{"v": np.ones(n, np.float32)} for n in (1, 2, 2)])
    batch = data.read([1, 2])["v"]
    assert batch.dtype == object and [row.shape for row in batch] == [(2,), (2,)]
