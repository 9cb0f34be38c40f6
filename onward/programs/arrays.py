"""Convert arguments to numpy arrays: arrays, lists, tensors of torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.errors import OnwardError

Array = np.ndarray[Any, Any]


def to_array(value: Any, what: str, refusal: type[OnwardError]) -> Array:
    """A value as an array, tensors of torch detached; `refusal` is raised if it is not one.

    >>> to_array([1.5, 2.5], "input 'x'", OnwardError)
    array([1.5, 2.5])
    """
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise refusal(f"{what} is not an array: {why}\ngive a numpy array") from error
    if array.dtype.kind == "O":
        _check_objects(array, what, refusal)
    return array


def to_plain_array(value: Any, what: str, refusal: type[OnwardError]) -> Array:
    """A value as a contiguous array in the machine's byte order."""
    is_plain = isinstance(value, np.ndarray) and value.dtype.kind != "O"
    array: Array = value if is_plain else to_array(value, what, refusal)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_objects(array: Array, what: str, refusal: type[OnwardError]) -> None:
    """Refuse arrays of Python objects other than strings."""
    for element in array.flat:
        if not isinstance(element, (str, bytes)):
            kind = type(element).__name__
            is_one = f"it is {kind}" if array.ndim == 0 else f"it holds objects, such as {kind}"
            raise refusal(f"{what} is not an array of numbers: {is_one}\ngive a numpy array")
