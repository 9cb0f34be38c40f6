"""The types of fields that files hold as text: guessed from a sample, and parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import ColumnMissing, DataError
from onward.message_text import suggest_names
from onward.runner.data.dataset import TEXT, Array, Column, stack_rows
from onward.settings import setting_error

INT, FLOAT, BOOL = "int", "float", "bool"
COLUMNS = {INT: Column("int64"), FLOAT: Column("float64"), BOOL: Column("bool"), TEXT: Column(TEXT)}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})  # in lower case
_BOOLS = {"true": True, "false": False}
_GIVEN_BOOLS = {**_BOOLS, "1": True, "0": False}  # where the user says that it is a bool
_INT = re.compile(r"[+-]?\d{1,18}")  # 19 digits may exceed int64
_LEADING_ZERO = re.compile(r"[+-]?0\d+")  # a postal code, not a number


def check_types(types: Mapping[str, str] | None, names: Iterable[str], source: object) -> None:
    """Refuse types of columns that do not exist, and unknown types."""
    names = list(names)
    for name, kind in (types or {}).items():
        if name not in names:
            hint = suggest_names(name, names, "its columns are")
            raise ColumnMissing(f"types: {source} has no column {name!r}\n{hint}")
        if kind not in COLUMNS:
            law = "'int', 'float', 'bool' or 'text'"
            raise setting_error(f"types[{name!r}]", law, kind)


def guess_type(values: Iterable[str]) -> str:
    """The narrowest type that holds every field; missing values make whole numbers floats.

    >>> guess_type(["1", "2"]), guess_type(["1", ""]), guess_type(["1", "x"]), guess_type(["01"])
    ('int', 'float', 'text', 'text')
    """
    given = [value.strip() for value in values]
    filled = [value for value in given if value.lower() not in MISSING]
    if not filled or any(_LEADING_ZERO.fullmatch(value) for value in filled):
        return TEXT
    whole = len(filled) == len(given)
    if whole and all(value.lower() in _BOOLS for value in filled):
        return BOOL
    if whole and all(_INT.fullmatch(value) for value in filled):
        return INT
    return FLOAT if all(is_number(value) for value in filled) else TEXT


def parse_fields(
    values: Sequence[str], kind: str, name: str, locate: Callable[[int], str]
) -> Array:
    """The fields of a column as an array; `locate` names the place of a row for an error."""
    if kind == TEXT:
        return stack_rows(values, COLUMNS[TEXT])
    try:
        return _parse(values, kind)
    except (ValueError, OverflowError):
        pass
    for row, value in enumerate(values):  # the whole column at once did not work: find the field
        try:
            _parse([value], kind)
        except (ValueError, OverflowError):
            raise _wrong_field(value, kind, name, locate(row)) from None
    raise AssertionError("every field is right, but the column is not")


def _parse(values: Sequence[str], kind: str) -> Array:
    if kind == INT:
        return np.fromiter(map(_whole_number, values), np.int64, len(values))
    if kind == BOOL:
        parsed = [_GIVEN_BOOLS.get(value.strip().lower()) for value in values]
        if None in parsed:
            raise ValueError
        return np.array(parsed, bool)
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except ValueError:  # perhaps one is missing
        known = (np.nan if is_missing(value) else float(value) for value in values)
        return np.fromiter(known, np.float64, len(values))


def _whole_number(value: str) -> int:
    """The number of a field; 2.0 is one, because a missing value makes a column of ints floats."""
    try:
        return int(value)
    except ValueError:
        number = float(value)
    if not number.is_integer():
        raise ValueError
    return int(number)


def is_missing(value: str) -> bool:
    """Whether a field says that there is no value."""
    return value.strip().lower() in MISSING


def _wrong_field(value: str, kind: str, name: str, place: str) -> DataError:
    if is_missing(value):
        return DataError(
            f"{place}: column {name!r} has a missing value, which {kind} does not have\n"
            f"read it with types={{{name!r}: 'float'}}, which makes it NaN, or fill it in the file"
        )
    return DataError(
        f"{place}: column {name!r} has {value!r:.80}, which is not {_DESCRIPTIONS[kind]}\n"
        f"correct the file, or read the column with types={{{name!r}: 'text'}}"
    )


_DESCRIPTIONS: Mapping[str, Any] = {
    INT: "a whole number",
    FLOAT: "a number",
    BOOL: "true or false",
}


def is_number(value: str) -> bool:
    """Whether a field is a number."""
    try:
        float(value)
    except ValueError:
        return False
    return "_" not in value  # only Python reads 1_000 as a number
