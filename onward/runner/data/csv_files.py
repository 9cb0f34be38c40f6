"""CSV and TSV files: an index of lines in memory; rows are parsed when they are read."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from onward.errors import DataError
from onward.message_text import list_names
from onward.runner.data.dataset import Array, check_positions, choose_columns
from onward.runner.data.field_types import COLUMNS, check_types, guess_type, parse_fields
from onward.runner.data.line_index import LineIndex

_SAMPLE = 1000  # rows from which types are guessed, spread over the file
_DELIMITERS = ",;\t|"


class CsvDataset:
    """The rows of a CSV file with a header; types are guessed from a sample, or given.

    >>> path = getfixture("tmp_path") / "animals.csv"
    >>> _ = path.write_text('weight,kind\\n4.5,cat\\n12,"dog, large"\\n')
    >>> data = CsvDataset(path)
    >>> data.read([1])["kind"].tolist(), data.columns["weight"].dtype
    (['dog, large'], dtype('float64'))
    """

    def __init__(
        self, path: Path, *, delimiter: str | None = None, types: Mapping[str, str] | None = None
    ) -> None:
        """`delimiter`: None takes the most frequent one of , ; | and the tab in the header."""
        self.path = path
        self._lines = LineIndex(path, quotes=True)
        header = self._lines[0]
        self._delimiter = delimiter or max(_DELIMITERS, key=header.count)
        self._names = self._check_header(self._split([header])[0])
        if not len(self):
            raise DataError(f"{path} is empty: it has a header, but no rows")
        check_types(types, self._names, path)
        self._types = {**self._guess_types(), **(types or {})}
        self.columns = {name: COLUMNS[self._types[name]] for name in self._names}

    def __len__(self) -> int:
        return len(self._lines) - 1

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.path)
        names = choose_columns(self.columns, columns, self.path)
        lines = [int(row) + 1 for row in rows]  # the header is line 0
        fields = self._fields(lines)
        return {
            name: parse_fields(
                [row[place] for row in fields],
                self._types[name],
                name,
                lambda row: self._locate(lines[row]),
            )
            for name, place in ((name, self._names.index(name)) for name in names)
        }

    def _fields(self, lines: Sequence[int]) -> list[list[str]]:
        rows = self._split([self._lines[line] for line in lines])
        for line, row in zip(lines, rows):
            if len(row) != len(self._names):
                raise DataError(
                    f"{self._locate(line)} has {len(row)} fields, but the header has "
                    f"{len(self._names)}\n{self._explain_count(row)}"
                )
        return rows

    def _explain_count(self, row: list[str]) -> str:
        if len(row) < len(self._names):
            return f"the field of column {self._names[len(row)]!r} is missing: is it truncated?"
        return f"quote fields that contain {self._delimiter!r}, or set delimiter"

    def _split(self, lines: Sequence[str]) -> list[list[str]]:
        try:
            return list(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            bad = next((line for line in lines if not self._is_valid(line)), lines[0])
            if "\r" in bad:
                raise DataError(
                    f"{self.path} has line breaks of a carriage return alone, in {bad!r:.80}\n"
                    "save the file with line breaks of Unix or Windows"
                ) from error
            raise DataError(
                f"{self.path}: {error}, in {bad!r:.80}\nwrite a quote inside a quoted field twice"
            ) from error

    def _is_valid(self, line: str) -> bool:
        try:
            return bool(list(csv.reader([line], delimiter=self._delimiter, strict=True)))
        except csv.Error:
            return False

    def _guess_types(self) -> dict[str, str]:
        count = min(_SAMPLE, len(self))
        # the last row too: it is the one that a truncated file lacks fields in
        chosen = sorted({1 + place * len(self) // count for place in range(count)} | {len(self)})
        rows = self._fields(chosen)
        return {
            name: guess_type(row[place] for row in rows) for place, name in enumerate(self._names)
        }

    def _check_header(self, given: list[str]) -> list[str]:
        # pandas writes the index of its rows as a column without a name
        names = [name.strip() or f"unnamed_{place}" for place, name in enumerate(given)]
        again = [name for place, name in enumerate(names) if name in names[:place]]
        if again:
            raise DataError(
                f"{self.path}: the header names {again[0]!r} twice\ngive every column its own name"
            )
        if all(guess_type([name]) != "text" for name in names):
            raise DataError(
                f"{self.path} has no header: its first line is {list_names(names)}\n"
                "write the names of the columns in the first line"
            )
        return names

    def _locate(self, line: int) -> str:
        return f"{self.path} line {self._lines.number_in_file(line)}"
