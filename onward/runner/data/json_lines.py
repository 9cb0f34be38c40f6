"""JSON Lines: one JSON object in each line; an index in memory, rows parsed when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import (
    TEXT,
    UNREADABLE,
    Array,
    Column,
    check_positions,
    choose_columns,
    stack_rows,
)
from onward.runner.data.field_types import COLUMNS, check_types
from onward.runner.data.line_index import LineIndex

_SAMPLE = 1000  # rows from which types are guessed, spread over the file


class JsonLinesDataset:
    """The rows of a .jsonl file: numbers, texts, true and false, and lists of numbers.

    >>> path = getfixture("tmp_path") / "animals.jsonl"
    >>> _ = path.write_text('{"kind": "cat", "size": [1, 2]}\\n{"kind": "dog", "size": [3, 4]}\\n')
    >>> data = JsonLinesDataset(path)
    >>> data.read([1])["size"].tolist(), str(data.columns["size"])
    ([[3, 4]], 'int64[2]')
    """

    def __init__(
        self,
        path: Path,
        *,
        types: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`columns`: those to keep; the others may hold anything."""
        self.path = path
        self._lines = LineIndex(path)
        count = min(_SAMPLE, len(self))
        # the last row too: it is the one that a truncated file has a part of
        chosen = {place * len(self) // count for place in range(count)} | {len(self) - 1}
        rows = {line: self._parse(line) for line in sorted(chosen)}
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        check_types(types, names, path)
        known = dict.fromkeys(names, COLUMNS[TEXT])
        self.columns = {
            name: COLUMNS[types[name]] if types and name in types else self._guess(name, rows)
            for name in choose_columns(known, columns, path)
        }

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.path).tolist()
        names = choose_columns(self.columns, columns, self.path)
        parsed = [self._parse(row) for row in rows]
        return {
            name: stack_rows(
                [self._value(name, row.get(name), line) for row, line in zip(parsed, rows)],
                self.columns[name],
            )
            for name in names
        }

    def _parse(self, line: int) -> dict[str, Any]:
        try:
            row = json.loads(self._lines[line])
        except (ValueError, RecursionError) as error:
            cut = "\nthe file is truncated: its last line is incomplete"
            hint = cut if line == len(self) - 1 else "\nwrite one JSON object in each line"
            raise DataError(f"{self._locate(line)} is not JSON: {error}{hint}") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{self._locate(line)} is not a JSON object: {self._lines[line]!r:.80}\n"
                'write {"column": value, ...} in each line'
            )
        return row

    def _guess(self, name: str, rows: Mapping[int, dict[str, Any]]) -> Column:
        """The column that holds the values of the sample."""
        values = {line: row.get(name) for line, row in rows.items()}
        given = {line: value for line, value in values.items() if value is not None}
        if not given or all(isinstance(value, str) for value in given.values()):
            return COLUMNS[TEXT]
        try:
            arrays = {line: self._array(name, value, line) for line, value in given.items()}
        except DataError as error:
            if any(isinstance(value, (dict, list)) for value in given.values()):
                return Column(UNREADABLE, why=str(error))
            raise
        first = next(iter(arrays.values()))
        dtype = np.result_type(*{array.dtype for array in arrays.values()})
        if len(given) < len(values):  # a missing number becomes NaN
            dtype = np.promote_types(dtype, np.float64)
        for line, array in arrays.items():
            if array.ndim != first.ndim:
                raise self._wrong(name, given[line], line, f"of {first.ndim} dimensions")
        shapes = {array.shape for array in arrays.values()}
        return Column(dtype, shapes.pop() if len(shapes) == 1 else (None,) * first.ndim)

    def _value(self, name: str, value: Any, line: int) -> Any:
        column = self.columns[name]
        if column.dtype == TEXT:
            return "" if value is None else value if isinstance(value, str) else json.dumps(value)
        if value is None and column.shape == () and column.dtype.kind == "f":
            return np.nan
        if value is None:
            raise DataError(
                f"{self._locate(line)}: column {name!r} has no value, and {column} has none for "
                f"that\nread it with types={{{name!r}: 'float'}}, which makes it NaN"
            )
        array = self._array(name, value, line)
        fits = np.can_cast(array.dtype, column.dtype, "same_kind") and array.dtype.kind != "b"
        if not fits and array.dtype != column.dtype:
            raise self._wrong(name, value, line, str(column))
        if len(array.shape) != len(column.shape) or any(
            size not in (None, given) for size, given in zip(column.shape, array.shape)
        ):
            raise self._wrong(name, value, line, f"of the shape of other rows, {column}")
        return array.astype(column.dtype)

    def _array(self, name: str, value: Any, line: int) -> Array:
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            raise self._wrong(name, value, line, "a list, or lists of equal lengths") from None
        if array.dtype.kind not in "bif":
            raise self._wrong(name, value, line, "a number, or a list of numbers")
        return array

    def _wrong(self, name: str, value: Any, line: int, law: str) -> DataError:
        return DataError(
            f"{self._locate(line)}: column {name!r} has {value!r:.80}, which is not {law}\n"
            f"correct the file, or read the column with types={{{name!r}: 'text'}}"
        )

    def _locate(self, line: int) -> str:
        return f"{self.path} line {self._lines.number_in_file(line)}"
