"""Random numbers as a function of (seed, epoch, row): no state, so a resumed run repeats them.

A counter is hashed with SplitMix64 (Steele, Lea, Flood 2014), vectorised over the rows; numpy does
not promise that its own generators give the same numbers in its next versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def random_bits(seed: int, epoch: int, rows: Array, stream: int = 0) -> Array:
    """64 random bits for each row; `stream` separates uses that must be independent.

    SplitMix64 is a bijection: different rows have different bits.

    >>> bits = random_bits(0, 1, np.arange(3))
    >>> bool((bits[1:] == random_bits(0, 1, np.arange(1, 3))).all())
    True
    """
    state = np.zeros(1, np.uint64)
    for key in (seed, epoch, stream):
        state = _mix(state ^ np.uint64(key & 0xFFFFFFFFFFFFFFFF))
    return _mix(_mix(state ^ np.asarray(rows).astype(np.uint64)))


def uniforms(seed: int, epoch: int, rows: Array, stream: int = 0) -> Array:
    """A number in [0, 1) for each row, of 53 random bits."""
    bits = random_bits(seed, epoch, rows, stream) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _mix(state: Array) -> Array:
    """The next output of SplitMix64; arrays of uint64 wrap around without a warning."""
    state = state + _STEP
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed
