"""Values of a Python program (lists, tensors, objects, missing ones) as columns of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import TEXT, UNREADABLE, Array, Column, stack_rows


def is_array(value: Any) -> bool:
    """Whether a value is an array of numpy, a tensor of torch, a series of pandas, ..."""
    return hasattr(value, "__array__") and hasattr(value, "shape")


def to_numpy(value: Any) -> Array:
    """A value as an array of numpy; tensors of torch too, of any device and type."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if hasattr(value, "toarray"):
        raise DataError(
            f"the data has a sparse array ({type(value).__name__})\nmake it dense: .toarray()"
        )
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        return np.where(np.ma.getmaskarray(value), np.nan, np.ma.getdata(value))
    return np.asarray(value)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, pandas.NA or NaT.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0), is_missing("")
    (True, True, False, False)
    """
    if value is None:
        return True
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType")


def stack_values(name: str, values: Sequence[Any], place: str = "") -> Array:
    """The values of a column as one array: of objects if they are texts, or arrays of many sizes.

    A missing text is "", a missing number NaN. `place` begins the message of an error.

    >>> stack_values("size", [1, None, 3]).tolist()
    [1.0, nan, 3.0]
    >>> stack_values("kind", ["cat", None]).tolist()
    ['cat', '']
    """
    missing = [is_missing(value) for value in values]
    texts = [isinstance(value, str) for value in values]
    if any(texts) and all(map(max, texts, missing)):
        filled = ["" if lost else value for value, lost in zip(values, missing)]
        return stack_rows(filled, Column(TEXT))
    if any(map(is_unreadable, values)):
        return stack_rows(values, Column(TEXT))  # as objects: refused where they are read
    known = [np.nan if lost else value for value, lost in zip(values, missing)]
    arrays = [_number_array(value) for value in known]
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "biuf" or array.ndim != arrays[0].ndim:
            raise DataError(
                f"{place}row {number}, column {name!r}: {values[number]!r:.80} is not a number or "
                f"an array of {arrays[0].ndim} dimensions, like the rows before\n"
                "a column holds numbers, arrays, or texts"
            )
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return stack_rows(arrays, Column(np.result_type(*arrays), (None,) * arrays[0].ndim))


def is_unreadable(value: Any) -> bool:
    """Whether a value is a dict, or a list of texts or of dicts."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, (str, Mapping)) for each in value)
    return isinstance(value, Mapping)


def to_column_array(name: str, values: Any, source: object) -> Array:
    """A column that a program holds as an array; memory-mapped ones stay so."""
    array = to_numpy(values)
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)):
        array = np.asarray(values, object)  # np.array([1, "a"]) would write "1"
    if array.dtype.kind in "Mm":  # a date is a text, as in CSV
        texts = np.datetime_as_string(array) if array.dtype.kind == "M" else array.astype(str)
        array = np.where(np.isnat(array), "", texts)
    if array.dtype.kind == "S":  # texts of HDF5 files
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype == object and array.ndim == 1:
        return stack_values(name, array.tolist(), f"{source}: ")
    if array.dtype == object:
        numbers = _number_array(array)
        return numbers if numbers.ndim else array
    return array


def column_of_array(name: str, array: Array, source: object) -> Column:
    """What a column's array holds; DataError if these are no numbers, texts or arrays."""
    if array.ndim == 0:
        raise DataError(f"{source}: {name!r} is a single value, not an array of rows")
    if array.dtype.kind in "biufV" and array.dtype.names is None:
        return Column(array.dtype, array.shape[1:])
    if array.dtype == object and array.ndim == 1:
        if all(isinstance(value, str) for value in array):
            return Column(TEXT)
        if all(isinstance(value, np.ndarray) for value in array):
            kinds = {value.dtype for value in array}
            return Column(np.result_type(*kinds), (None,) * array[0].ndim)
        row = next(row for row, value in enumerate(array) if not isinstance(value, str))
        return Column(
            UNREADABLE,
            why=f"{source}: row {row}, column {name!r}: {array[row]!r:.80} is not a text\n"
            "a column holds numbers, arrays, or texts",
        )
    raise DataError(
        f"{source}: column {name!r} is of the type {array.dtype}\n"
        "a column holds numbers, arrays, or texts"
    )


def _number_array(value: Any) -> Array:
    """A number, an image of Pillow, or an array; of objects if it is neither."""
    try:
        array = to_numpy(value)
        if array.dtype == object:  # Decimal, Fraction
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        return np.array(None, object)
    return array
