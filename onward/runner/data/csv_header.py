"""Whether the first line of a CSV file has the names of its columns, judged as DuckDB does.

A line of names has other types than the rows below it: a text over a column of numbers. A line with
numbers that could as well be a row is one, and the columns are called column0, column1, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onward.message_text import list_names
from onward.runner.data.dataset import TEXT
from onward.runner.data.field_types import guess_type, is_missing

_SHOWN = 5  # fields of the first line in a reason
_COUNTED = 3  # consecutive numbers at least are names: 0, 1, 2, ..., as pandas writes them


@dataclass(frozen=True)
class CsvHeader:
    """Whether a file has names in its first line; `why` is empty where nobody would doubt it."""

    is_there: bool
    why: str = ""


def find_header(first: Sequence[str], below: Sequence[str]) -> CsvHeader:
    """Judge by the fields of the first line, and the types of the columns below it.

    >>> find_header(["size", "kind"], ["float", "text"]).is_there
    True
    >>> find_header(["5.1", "cat"], ["float", "text"])
    CsvHeader(is_there=False, why="its first line, '5.1', 'cat', has the types of the rows below")
    """
    numbers = [field for field in first if not is_missing(field) and guess_type([field]) != TEXT]
    if not numbers:
        return CsvHeader(True)
    shown = f"{list_names(first[:_SHOWN])}{', ...' if len(first) > _SHOWN else ''}"
    names = [
        field
        for field, kind in zip(first, below)
        if kind != TEXT and not is_missing(field) and guess_type([field]) == TEXT
    ]
    if names:
        return CsvHeader(True, f"{names[0]!r} in its first line is over a column of numbers")
    if _are_counted(numbers):
        return CsvHeader(True, f"its first line counts: {shown}")
    return CsvHeader(False, f"its first line, {shown}, has the types of the rows below")


def number_columns(count: int) -> list[str]:
    """The names of columns of a file without a header.

    >>> number_columns(2)
    ['column0', 'column1']
    """
    return [f"column{place}" for place in range(count)]


def are_numbered(names: Sequence[str] | Mapping[str, object]) -> bool:
    """Whether columns are called as those of a file without a header are."""
    return bool(names) and all(
        name.startswith("column") and name.removeprefix("column").isdecimal() for name in names
    )


def _are_counted(numbers: Sequence[str]) -> bool:
    if len(numbers) < _COUNTED or not all(number.strip().isdecimal() for number in numbers):
        return False
    first = int(numbers[0])
    return [int(number) for number in numbers] == [*range(first, first + len(numbers))]
