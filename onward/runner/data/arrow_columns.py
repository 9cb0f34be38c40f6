"""Columns of Arrow as columns of a dataset: which types there are, and batches of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import IMAGE, TEXT, UNREADABLE, Array, Column, stack_rows
from onward.runner.data.field_types import BOOL, FLOAT, INT, parse_fields
from onward.runner.data.image_folder import decode_image

# Arrow's own spelling of types, so that this file needs no pyarrow.
_NUMBERS = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "float32", "float64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
    "bool": "bool",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_FIELDS = {"b": BOOL, "i": INT, "u": INT, "f": FLOAT}  # by numpy's kind
_TEXT = re.compile(
    r"(large_)?string(_view)?|dictionary<values=(large_)?string.*"
    r"|(timestamp|date32|date64|time32|time64|duration).*"  # a date is a text, as in CSV
)
_LIST = re.compile(r"(?:large_)?list(?:_view)?<\w+: (?P<inner>.*?)(?: not null)?>")
_FIXED = re.compile(r"fixed_size_list<\w+: (?P<inner>.*?)(?: not null)?>\[(?P<size>\d+)\]")
_IMAGE = re.compile(r"struct<bytes: binary, path: string>")  # of Hugging Face's `datasets`


def column_of(
    name: str,
    kind: Any,
    source: object,
    image_shape: tuple[int | None, ...] = (3, None, None),
    array_shape: tuple[int | None, ...] | None = None,
) -> Column:
    """The column for a type of Arrow.

    Images are decoded to `image_shape`; `array_shape` is that of lists in lists, if it is known.
    """
    text = str(getattr(kind, "storage_type", kind))
    if _TEXT.fullmatch(text):
        return Column(TEXT)
    if _IMAGE.fullmatch(text):
        return Column(IMAGE, image_shape)
    found = _number_column(text)
    if found is None:
        return Column(
            UNREADABLE,
            why=f"{source}: column {name!r} is of Arrow's type {text}, which cannot be read\n"
            f"choose other columns, read it as text: types={{{name!r}: 'text'}}, or convert it",
        )
    if array_shape is not None and len(array_shape) == len(found.shape):
        return Column(found.dtype, array_shape)
    return found


def _number_column(text: str) -> Column | None:
    if text in _NUMBERS:
        return Column(_NUMBERS[text])
    if text.startswith("decimal"):
        return Column("float64")
    match = _FIXED.fullmatch(text) or _LIST.fullmatch(text)
    inner = None if match is None else _number_column(match["inner"])
    if match is None or inner is None:
        return None
    size = match.groupdict().get("size")
    return Column(inner.dtype, (None if size is None else int(size), *inner.shape))


def to_batch(values: Any, column: Column, name: str, rows: Array, source: object) -> Array:
    """A column of Arrow (of the rows `rows`) as a batch; a missing number is NaN or an error."""
    if column.dtype == IMAGE:
        listed = zip(rows, values.to_pylist())
        images = [_image(value, column, row, name, source) for row, value in listed]
        return stack_rows(images, column)
    if column.dtype == TEXT:
        texts = ["" if value is None else str(value) for value in values.to_pylist()]
        return stack_rows(texts, column)
    if values.null_count and not (column.shape == () and column.dtype.kind == "f"):
        row = rows[int(np.argmax(values.is_null().to_numpy()))]
        advice = f"read it with types={{{name!r}: 'float'}}, which makes it NaN"
        raise DataError(
            f"{source} row {row}: column {name!r} has no value, and {column} has none for that\n"
            + ("remove the row, or fill it" if column.shape else advice)
        )
    if column.shape == ():
        return _numbers(values, column, name, rows, source)
    return _arrays(values, column, name, rows, source)


def _numbers(values: Any, column: Column, name: str, rows: Array, source: object) -> Array:
    plain = np.asarray(values.to_numpy())  # a missing float is NaN in it
    if plain.dtype == object and any(isinstance(value, str) for value in plain):
        fields = ["" if value is None else str(value) for value in plain]
        kind = _FIELDS[column.dtype.kind]
        return parse_fields(fields, kind, name, lambda row: f"{source} row {rows[row]}")
    numbers = plain.astype(column.dtype)
    lost = (numbers != plain) if column.dtype.kind in "biu" else np.zeros(len(numbers), bool)
    if lost.any():  # the user asked for whole numbers, or for true and false
        row = int(np.argmax(lost))
        raise DataError(
            f"{source} row {rows[row]}: column {name!r} has {plain[row]}, which is not {column}\n"
            f"read it with types={{{name!r}: 'float'}}"
        )
    return numbers


def _arrays(values: Any, column: Column, name: str, rows: Array, source: object) -> Array:
    found = []
    for row, value in zip(rows, values.to_pylist()):
        try:
            found.append(np.asarray(value, column.dtype))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{source} row {row}: column {name!r} has {value!r:.80}, which is not {column}"
            ) from error
    return stack_rows(found, column)


def _image(value: Any, column: Column, row: int, name: str, source: object) -> Array:
    data = (value or {}).get("bytes")
    if data is None:
        raise DataError(
            f"{source} row {row}: column {name!r} has no image, only the path of one\n"
            "save the dataset with its images embedded"
        )
    channels, height, width = column.shape
    size = None if height is None or width is None else (height, width)
    return decode_image(data, f"{source} row {row}", size, channels or 3)
