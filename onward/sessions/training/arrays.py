"""Arrays from what a user gives: numpy's own, lists, tensors of torch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.errors import OnwardError

Array = np.ndarray[Any, Any]


def to_array(value: Any, what: str, refusal: type[OnwardError]) -> Array:
    """What was given as an array, torch's tensors without their history; or why it is none.

    >>> to_array([1.5, 2.5], "input 'x'", OnwardError)
    array([1.5, 2.5])
    """
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise refusal(f"{what} is no array: {why}\ngive a numpy array") from error
