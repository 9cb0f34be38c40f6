"""Slots of optimizers that are stored in 16 bits: which of them, and how they are rounded.

A slot that keeps nearly all of itself in an update, such as v' = 0.999 v + 0.001 g^2, changes by
less than half a step of bfloat16: rounded to the nearest, it would stay where it is. It is rounded
at random, so that its mean is exact. A slot that changes faster is rounded to the nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onward.settings import Check, choice, optional

STATE_DTYPE: Check = optional(choice("bf16"))  # the check of a setting `state_dtype`
_SLOW = 0.95  # the nearest bfloat16 is wrong by up to 2**-9 / (1 - decay): here by 4 percent


class StoredSlot(NamedTuple):
    """The type that a slot is stored in, other than its parameter's."""

    dtype: str
    stochastic: bool  # rounded at random, or to the nearest


def stored_in(state_dtype: str | None, decays: Mapping[str, float]) -> dict[str, StoredSlot]:
    """How slots are stored; `decays`: the share of itself that each keeps in an update.

    >>> stored_in("bf16", {"exp_avg_sq": 0.999})
    {'exp_avg_sq': StoredSlot(dtype='bfloat16', stochastic=True)}
    """
    if state_dtype is None:
        return {}
    return {slot: StoredSlot("bfloat16", decay > _SLOW) for slot, decay in decays.items()}
