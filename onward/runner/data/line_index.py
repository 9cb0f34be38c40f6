"""LineIndex: where each line of a text file begins and ends; lines are read by number.

The file is memory-mapped. The index costs 16 bytes for each line, whatever the lines' lengths.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.graph.paths import check_exists

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 20  # bytes that are searched for line ends at once
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_MARK = b"\xef\xbb\xbf"  # some editors write this mark of UTF-8 first


def map_file(path: Path, what: str = "data file") -> mmap.mmap:
    """A file's bytes, memory-mapped; an error names a file that is missing, empty or unreadable."""
    check_exists(path, what)
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # what mmap raises for a file of 0 bytes
        raise DataError(f"{path} is empty\ngive a file with rows") from None
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file that the system does not let us read."""
    why = getattr(error, "strerror", None) or str(error)
    return DataError(f"{path} cannot be read: {why}\ncheck the path, and that you may read it")


class LineIndex:
    """The lines of a file that are not empty; with `quotes`, quoted fields may span lines."""

    def __init__(self, path: Path, *, quotes: bool = False) -> None:
        self.path = path
        self._bytes = map_file(path)
        begin = len(_MARK) if self._bytes[:3] == _MARK else 0
        spans = list(self._find_lines(begin, quotes))
        if not any(len(starts) for starts, _ in spans):
            raise DataError(f"{path} is empty\ngive a file with rows")
        self._starts = np.concatenate([starts for starts, _ in spans])
        self._ends = np.concatenate([ends for _, ends in spans])

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> str:
        """The text of a line, without its end."""
        line = self._bytes[self._starts[number] : self._ends[number]]
        try:
            return line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} line {self.number_in_file(number)} is not UTF-8 text: {error}\n"
                "save the file in UTF-8"
            ) from error

    def number_in_file(self, number: int) -> int:
        """The number of a line as an editor shows it: from 1, empty lines counted."""
        before, start = 1, int(self._starts[number])
        for begin in range(0, start, _CHUNK):
            before += self._bytes[begin : min(begin + _CHUNK, start)].count(b"\n")
        return before

    def _find_lines(self, begin: int, quotes: bool) -> Iterator[tuple[Array, Array]]:
        """(starts, ends) of the lines that end in each chunk of the file."""
        start, inside, quoted_from = begin, False, 0
        size = len(self._bytes)
        for place in range(begin, size, _CHUNK):
            chunk = np.frombuffer(self._bytes[place : place + _CHUNK], np.uint8)
            ends = np.flatnonzero(chunk == _NEWLINE)
            marks = np.flatnonzero(chunk == _QUOTE) if quotes else ends[:0]
            if inside or len(marks):  # a line ends where the quotes before it are paired
                ends = ends[(np.searchsorted(marks, ends) + inside) % 2 == 0]
            if len(marks):
                inside = bool((inside + len(marks)) % 2)
                quoted_from = place + int(marks[-1])
            ends = ends.astype(np.int64) + place
            yield self._without_empty(np.concatenate([[start], ends[:-1] + 1])[: len(ends)], ends)
            start = int(ends[-1]) + 1 if len(ends) else start
        if inside:
            line = self._bytes[:quoted_from].count(b"\n") + 1
            raise DataError(
                f"{self.path} is truncated, or a quote is missing: the field that is quoted in "
                f"line {line} never ends\nwrite a quote inside a quoted field twice"
            )
        if start < size:  # the last line has no end
            yield self._without_empty(np.array([start]), np.array([size]))

    def _without_empty(self, starts: Array, ends: Array) -> tuple[Array, Array]:
        lengths = ends - starts
        filled = lengths > 1
        for place in np.flatnonzero(lengths == 1):
            filled[place] = self._bytes[int(starts[place])] != _RETURN
        return starts[filled], ends[filled]
