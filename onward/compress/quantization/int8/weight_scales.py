"""Round weights to signed 8 bits with one scale a channel: the scales of least squared error."""

from __future__ import annotations

import numpy as np

from onward.graph.int8_weights import LARGEST
from onward.passes.value_facts import Array

_SHARES = np.linspace(1.0, 0.7, 7)  # of the greatest absolute number that a scale covers
_TINY = 1e-9


def channel_scales(
    weight: Array, axis: int, *, search: bool = True, largest: int = LARGEST
) -> Array:
    """A scale for each channel; the greatest absolute number of it, or less if that errs less.

    The scale of the whole tensor is among the candidates, so a channel never errs more than with
    one scale for all.

    Args:
        weight: the weight
        axis: the axis of channels
        search: whether to try smaller scales
        largest: the largest number that rounded weights may have
    """
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    greatest = np.abs(rows).max(axis=1) if rows.size else np.zeros(len(rows), np.float32)
    greatest = np.maximum(greatest, _TINY)
    if not search:
        return np.asarray(greatest / largest, np.float32)
    candidates = [greatest * share for share in _SHARES]
    candidates.append(np.full_like(greatest, greatest.max()))
    best = candidates[0] / largest
    least = _squared_errors(rows, best, largest)
    for candidate in candidates[1:]:
        scales = candidate / largest
        errors = _squared_errors(rows, scales, largest)
        best = np.where(errors < least, scales, best)
        least = np.minimum(errors, least)
    return np.asarray(best, np.float32)


def round_weight(weight: Array, scales: Array, axis: int, largest: int = LARGEST) -> Array:
    """The weight in signed 8 bits; no number is larger than `largest`."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    rounded = np.rint(weight / scales.reshape(shape))
    return np.clip(rounded, -largest, largest).astype(np.int8)


def dequantize(rounded: Array, scales: Array, axis: int) -> Array:
    """The numbers that rounded weights stand for."""
    shape = [1] * rounded.ndim
    shape[axis] = -1
    return rounded.astype(np.float32) * scales.reshape(shape)


def _squared_errors(rows: Array, scales: Array, largest: int) -> Array:
    step = scales[:, None]
    error = np.clip(np.rint(rows / step), -largest, largest) * step - rows
    return np.asarray((error * error).sum(axis=1))
