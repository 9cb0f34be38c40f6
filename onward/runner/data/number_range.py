"""cast_numbers: numbers in the type of a feed; those that it cannot hold are an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onward.errors import DataError
from onward.message_text import list_names
from onward.runner.data.dataset import Array


def cast_numbers(
    numbers: Array, dtype: np.dtype[Any], columns: Sequence[str], positions: Array | None = None
) -> Array:
    """Numbers as another type; `columns` and the rows' `positions` are named in the error.

    A float beyond the largest one of the type would become infinite, a whole number another one.

    >>> cast_numbers(np.array([1.5]), np.dtype("float16"), ["a"]).dtype
    dtype('float16')
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = numbers.astype(dtype)
    lost = _lost(numbers, found)
    if lost is None or not lost.any():
        return found
    place = int(np.argmax(lost.reshape(len(numbers), -1).any(1)))
    row = place if positions is None else int(positions[place])
    word = "column" if len(columns) == 1 else "columns"
    raise DataError(
        f"row {row}, {word} {list_names(columns)}: {numbers[lost].flat[0]} does not fit "
        f"{dtype}, whose numbers are from {_limits(dtype)}\n"
        "correct the number, or scale the column"
    )


def _lost(numbers: Array, found: Array) -> Array | None:
    """Which numbers became infinite or other ones; None where none can."""
    if found.dtype.kind in "iu" and numbers.dtype.kind in "iuf":
        if np.can_cast(numbers.dtype, found.dtype):
            return None
        limits = np.iinfo(found.dtype)
        return np.asarray((numbers < limits.min) | (numbers > limits.max))
    is_float = found.dtype.kind in "fV" and numbers.dtype.kind in "iuf"
    if not is_float or np.can_cast(numbers.dtype, found.dtype):
        return None
    infinite = ~np.isfinite(found)
    return infinite & np.isfinite(numbers) if infinite.any() else None


def _limits(dtype: np.dtype[Any]) -> str:
    of_floats: Any = ml_dtypes.finfo  # numpy's has no bfloat16
    info = np.iinfo(dtype) if dtype.kind in "iu" else of_floats(dtype)
    return f"{info.min} to {info.max}"
