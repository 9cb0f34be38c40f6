"""CSV and TSV files: an index of lines in memory; rows are parsed when they are read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from onward.errors import DataError
from onward.runner.data.csv_header import CsvHeader, are_numbered, find_header, number_columns
from onward.runner.data.dataset import Array, check_positions, choose_columns
from onward.runner.data.field_types import COLUMNS, check_types, guess_type, parse_fields
from onward.runner.data.line_index import LineIndex

_SAMPLE = 1000  # rows from which types are guessed, spread over the file
_DELIMITERS = ",;\t|"


class CsvDataset:
    """The rows of a CSV file; header and types are guessed from a sample, or given.

    >>> path = getfixture("tmp_path") / "animals.csv"
    >>> _ = path.write_text('weight,kind\\n4.5,cat\\n12,"dog, large"\\n')
    >>> data = CsvDataset(path)
    >>> data.read([1])["kind"].tolist(), data.columns["weight"].dtype
    (['dog, large'], dtype('float64'))
    """

    def __init__(
        self,
        path: Path,
        *,
        delimiter: str | None = None,
        types: Mapping[str, str] | None = None,
        header: bool | None = None,
    ) -> None:
        """`delimiter`: None takes the most frequent one of , ; | and the tab in the first line.

        `header`: whether that line has the names of the columns; None: found by types.
        """
        self.path = path
        self._lines = LineIndex(path, quotes=True)
        line = self._lines[0]
        self._delimiter = delimiter or max(_DELIMITERS, key=line.count)
        # "a, b" separates by a comma and a space
        after = line.split(self._delimiter)[1:]
        self._skips_space = bool(after) and all(field.startswith(" ") for field in after)
        self._before = 1  # lines before the first row
        self._names = first = self._split([line])[0]
        below = self._guess_types() if len(self) else []
        self.header = self._find_header(types, below) if header is None else CsvHeader(header)
        if not self.header.is_there and not are_numbered(first):
            self._before, self._names = 0, number_columns(len(first))
            below = self._guess_types()
        else:
            self._names = self._check_header(first)
        if not len(self):
            raise DataError(f"{path} is empty: it has a header, but no rows")
        check_types(types, self._names, path)
        self._types = {**dict(zip(self._names, below)), **(types or {})}
        self.columns = {name: COLUMNS[self._types[name]] for name in self._names}

    def __len__(self) -> int:
        return len(self._lines) - self._before

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.path)
        names = choose_columns(self.columns, columns, self.path)
        lines = [int(row) + self._before for row in rows]
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
                    f"{self._locate(line)} has {len(row)} fields, but the first line has "
                    f"{len(self._names)}\n{self._explain_count(row)}"
                )
        return rows

    def _explain_count(self, row: list[str]) -> str:
        if len(row) < len(self._names):
            return f"the field of column {self._names[len(row)]!r} is missing: is it truncated?"
        return f"quote fields that contain {self._delimiter!r}, or set delimiter"

    def _split(self, lines: Sequence[str]) -> list[list[str]]:
        try:
            return list(self._reader(lines))
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

    def _reader(self, lines: Sequence[str]) -> Iterable[list[str]]:
        return csv.reader(
            lines, delimiter=self._delimiter, strict=True, skipinitialspace=self._skips_space
        )

    def _is_valid(self, line: str) -> bool:
        try:
            return bool(list(self._reader([line])))
        except csv.Error:
            return False

    def _guess_types(self) -> list[str]:
        count = min(_SAMPLE, len(self))
        # the last row too: it is the one that a truncated file lacks fields in
        chosen = {place * len(self) // count for place in range(count)} | {len(self) - 1}
        rows = self._fields([self._before + row for row in sorted(chosen)])
        return [guess_type(row[place] for row in rows) for place in range(len(self._names))]

    def _find_header(self, types: Mapping[str, str] | None, below: Sequence[str]) -> CsvHeader:
        if not below or set(types or ()) & set(self._names):
            return CsvHeader(True)  # there is no row to compare with, or the user knows a name
        return find_header(self._names, below)

    def _check_header(self, given: list[str]) -> list[str]:
        # pandas writes the index of its rows as a column without a name
        names = [name.strip() or f"unnamed_{place}" for place, name in enumerate(given)]
        again = [name for place, name in enumerate(names) if name in names[:place]]
        if again:
            raise DataError(
                f"{self.path}: the header names {again[0]!r} twice\ngive every column its own name"
            )
        return names

    def _locate(self, line: int) -> str:
        return f"{self.path} line {self._lines.number_in_file(line)}"
