"""Data that is in memory: a dict of arrays, a table of pandas, rows as dicts or tuples."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import ColumnMissing, DataError
from onward.formatting import show_bytes
from onward.message_text import list_names
from onward.runner.data.dataset import (
    TEXT,
    UNREADABLE,
    Array,
    Column,
    check_positions,
    choose_columns,
    stack_rows,
)

MEMORY_LIMIT = 1 << 30  # bytes that rows without a known length may take


class ArrayDataset:
    """Columns that are arrays of equal length, in memory or memory-mapped.

    >>> data = ArrayDataset({"x": np.eye(3, dtype=np.float32), "label": ["cat", "dog", "cat"]})
    >>> len(data), str(data.columns["x"]), str(data.columns["label"])
    (3, 'float32[3]', 'text')
    >>> data.read([2])["label"].tolist()
    ['cat']
    """

    def __init__(self, arrays: Mapping[str, Any], source: object = "the data") -> None:
        self._source = source
        self._arrays = {str(name): _to_array(values) for name, values in arrays.items()}
        self.columns = {name: _column(name, a, source) for name, a in self._arrays.items()}
        if not self._arrays:
            raise DataError(f"{source} has no arrays\ngive at least one column")
        lengths = {name: len(array) for name, array in self._arrays.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise DataError(
                    f"{source}: {name!r} has {length:,} rows, but {first!r} has "
                    f"{lengths[first]:,}\nevery array needs the same first dimension"
                )
        if not lengths[first]:
            raise DataError(f"{source} is empty: its arrays have no rows")
        self._count = lengths[first]

    def __len__(self) -> int:
        return self._count

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, self._count, self._source)
        names = choose_columns(self.columns, columns, self._source)
        return {name: np.asarray(self._arrays[name][rows]) for name in names}


def from_table(table: Any) -> ArrayDataset:
    """The columns of a table of pandas."""
    return ArrayDataset({str(name): table[name].to_numpy() for name in table.columns}, "the table")


def from_rows(rows: Iterable[Any], memory_limit: int = MEMORY_LIMIT) -> ArrayDataset:
    """Rows that are dicts or tuples, read into memory; pairs are called x and y.

    >>> data = from_rows([([1.0, 2.0], "cat"), ([3.0, 4.0], "dog")])
    >>> data.read([1])["x"].tolist(), data.read([1])["y"].tolist()
    ([[3.0, 4.0]], ['dog'])
    """
    names: list[str] | None = None
    values: list[list[Any]] = []
    size = 0
    for number, row in enumerate(rows):
        fields = _fields(row, number)
        if names is None:
            names, values = list(fields), [[] for _ in fields]
        if len(fields) != len(names) or any(name not in fields for name in names):
            raise ColumnMissing(
                f"row {number} has the columns {list_names(fields)}, but row 0 has "
                f"{list_names(names)}\nevery row needs the same ones"
            )
        for column, name in zip(values, names):
            column.append(fields[name])
        size += sum(_size(value) for value in fields.values())
        if size > memory_limit:
            raise DataError(
                f"the rows take more than the limit of {show_bytes(memory_limit)} after "
                f"{number + 1:,} of them: rows of Python are read into memory\n"
                "write them to a file (npz, Parquet, JSONL), or raise memory_limit"
            )
    if names is None:
        raise DataError("the data is empty: it has no rows")
    return ArrayDataset({name: _stack(name, column) for name, column in zip(names, values)})


def _fields(row: Any, number: int) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}
    if isinstance(row, (tuple, list)):
        plain = ["x", "y"] if len(row) == 2 else [f"column_{place}" for place in range(len(row))]
        return dict(zip(getattr(row, "_fields", plain), row))
    raise DataError(
        f"row {number} is of the class {type(row).__name__}\n"
        "every row must be a dict {column: value}, or a tuple such as (x, y)"
    )


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)


def _stack(name: str, values: list[Any]) -> Array:
    """The values of a column as one array; of objects if their sizes differ."""
    if all(isinstance(value, str) for value in values):
        return stack_rows(values, Column(TEXT))
    if any(map(_is_unreadable, values)):
        return stack_rows(values, Column(TEXT))  # as objects: refused where they are read
    arrays = [np.asarray(value) for value in values]
    kinds = {array.dtype.kind for array in arrays}
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "biuf" or len({array.ndim, arrays[0].ndim}) > 1:
            raise DataError(
                f"row {number}, column {name!r}: {values[number]!r:.80} is not a number or an "
                f"array of {arrays[0].ndim} dimensions, like the rows before\n"
                "a column holds numbers, arrays, or texts"
            )
    if len({array.shape for array in arrays}) == 1 and kinds:
        return np.stack(arrays)
    return stack_rows(arrays, Column(np.result_type(*arrays), (None,) * arrays[0].ndim))


def _is_unreadable(value: Any) -> bool:
    """Whether a value is a dict, or a list of texts or of dicts."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, (str, Mapping)) for each in value)
    return isinstance(value, Mapping)


def _to_array(values: Any) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind not in "US":
        return values  # memory-mapped ones stay so
    array = np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = np.asarray(values, object)  # np.array([1, "a"]) would write "1"
    return array.astype(object) if array.dtype.kind == "U" else array


def _column(name: str, array: Array, source: object) -> Column:
    if array.ndim == 0:
        raise DataError(f"{source}: {name!r} is a single number, not an array of rows")
    if array.dtype.kind in "biufV" and array.dtype.names is None:
        return Column(array.dtype, array.shape[1:])
    if array.dtype == object and array.ndim == 1:
        if all(isinstance(value, str) for value in array):
            return Column(TEXT)
        if all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in array):
            kinds = {value.dtype for value in array}
            return Column(np.result_type(*kinds), (None,) * array[0].ndim)
        row = next(row for row, value in enumerate(array) if not isinstance(value, str))
        why = (
            f"{source}: row {row}, column {name!r}: {array[row]!r:.80} is not a text\n"
            "a column holds numbers, arrays, or texts; fill missing values first"
        )
        if any(map(_is_unreadable, array)):
            return Column(UNREADABLE, why=why)
        raise DataError(why)
    raise DataError(
        f"{source}: column {name!r} is of the type {array.dtype}\n"
        "a column holds numbers, arrays, or texts"
    )
