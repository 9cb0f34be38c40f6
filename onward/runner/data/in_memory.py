"""Data that is in memory: a dict of arrays, a table of pandas, rows as dicts or tuples, pairs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import ColumnMissing, DataError
from onward.formatting import show_bytes
from onward.message_text import list_names
from onward.runner.data.dataset import (
    Array,
    Dataset,
    check_positions,
    choose_columns,
    names_of_classes,
)
from onward.runner.data.python_values import (
    column_of_array,
    is_array,
    stack_values,
    to_column_array,
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

    def __init__(
        self, arrays: Mapping[str, Any], source: object = "the data", paired_target: str = ""
    ) -> None:
        self._source = source
        named = {str(name): values for name, values in arrays.items()}
        self._arrays = {n: to_column_array(n, values, source) for n, values in named.items()}
        self.columns = {n: column_of_array(n, a, source) for n, a in self._arrays.items()}
        self.paired_target = paired_target
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


class PairedDataset:
    """The rows of a pair (inputs, target): columns of two datasets, side by side.

    `name` is what the target's column is called here; empty: as in its dataset.
    """

    def __init__(self, inputs: Dataset, target: Dataset, name: str = "") -> None:
        if len(inputs) != len(target):
            raise DataError(
                f"the pair has {len(inputs):,} rows of inputs, but {len(target):,} of the target\n"
                "give as many of both"
            )
        [(self._own, column)] = target.columns.items()
        self.paired_target = name or self._own
        if self.paired_target in inputs.columns:
            raise DataError(
                f"the pair has column {self.paired_target!r} twice: in the inputs, and in the "
                "target\nleave it out of the inputs"
            )
        self._inputs, self._target = inputs, target
        self.columns = {**inputs.columns, self.paired_target: column}
        self.class_names = dict(names_of_classes(inputs))
        if self._own in names_of_classes(target):
            self.class_names[self.paired_target] = names_of_classes(target)[self._own]

    def __len__(self) -> int:
        return len(self._inputs)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        names = choose_columns(self.columns, columns, "the pair")
        found = self._inputs.read(positions, [n for n in names if n != self.paired_target])
        if self.paired_target in names:
            found[self.paired_target] = self._target.read(positions)[self._own]
        return {name: found[name] for name in names}

    def with_target(self, name: str) -> PairedDataset:
        """The same rows; the target's column is called `name`."""
        return PairedDataset(self._inputs, self._target, name)


def paired_target(dataset: Dataset) -> str:
    """The column that is the second part of a pair (inputs, target); empty for other data."""
    found: str = getattr(dataset, "paired_target", "")
    return found


def from_table(table: Any) -> ArrayDataset:
    """The columns of a table of pandas."""
    names = [str(name) for name in table.columns]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"the table has two columns {name!r}\nrename one of them")
    arrays = {str(name): table[name].to_numpy() for name in table.columns}
    return ArrayDataset(arrays, "the table")


def from_rows(rows: Iterable[Any], memory_limit: int = MEMORY_LIMIT) -> ArrayDataset:
    """Rows that are dicts, tuples or arrays, read into memory; pairs are called x and y.

    >>> data = from_rows([([1.0, 2.0], "cat"), ([3.0, 4.0], "dog")])
    >>> data.read([1])["x"].tolist(), data.read([1])["y"].tolist()
    ([[3.0, 4.0]], ['dog'])
    """
    names: list[str] | None = None
    values: list[list[Any]] = []
    size, target = 0, ""
    for number, row in enumerate(rows):
        fields, target = _fields(row, number)
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
    arrays = {name: stack_values(name, column) for name, column in zip(names, values)}
    return ArrayDataset(arrays, paired_target=target)


def _fields(row: Any, number: int) -> tuple[dict[str, Any], str]:
    """A row by column, and the column that is the target of a pair."""
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}, ""
    if isinstance(row, (tuple, list)):
        if hasattr(row, "_fields"):
            return dict(zip(row._fields, row)), ""
        if len(row) != 2:
            return {f"column_{place}": value for place, value in enumerate(row)}, ""
        return {**name_inputs(row[0]), "y": row[1]}, "y"
    if is_array(row):
        return {"x": row}, ""
    raise DataError(
        f"row {number} is of the class {type(row).__name__}\n"
        "every row must be a dict {column: value}, or a tuple such as (x, y)"
    )


def name_inputs(inputs: Any) -> dict[str, Any]:
    """The first part of a pair by column: x, or those of a dict, or x_0, x_1 of several arrays."""
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}
    if isinstance(inputs, tuple) and inputs and all(map(is_array, inputs)):
        return {f"x_{place}": value for place, value in enumerate(inputs)}
    return {"x": inputs}


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)
