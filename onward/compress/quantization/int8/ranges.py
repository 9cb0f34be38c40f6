"""Choose the range of a value that 8 bits cover, from its bounds or its histogram.

minmax      everything that was seen
percentile  all but a few in a hundred thousand
mse         the least squared error of rounding and clipping together
entropy     the least divergence between the distributions before and after
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onward.compress.quantization.int8.statistics import ValueHistogram
from onward.errors import OptionError
from onward.passes.value_facts import Array

METHODS = ("minmax", "percentile", "mse", "entropy")
_OUTSIDE = 1e-5  # the share of numbers that percentile leaves out on each side
_SHARES = np.concatenate([np.geomspace(0.05, 0.5, 12)[:-1], np.linspace(0.5, 1.0, 41)])
_LEVELS = 256


@dataclass(frozen=True)
class Int8Range:
    """The numbers that 8 bits cover: unsigned, with an exact zero."""

    low: float
    high: float

    @property
    def scale(self) -> np.float32:
        return np.float32(max(self.high - self.low, 1e-10) / (_LEVELS - 1))

    @property
    def zero_point(self) -> np.uint8:
        return np.uint8(np.clip(np.rint(-self.low / float(self.scale)), 0, _LEVELS - 1))


def check_method(method: str) -> None:
    """Refuse an unknown way to choose ranges."""
    if method not in (*METHODS, "auto"):
        raise OptionError(
            f"ranges={method!r} does not exist\nit must be one of {', '.join(METHODS)}, auto"
        )


def choose_range(histogram: ValueHistogram, method: str) -> Int8Range:
    """The range of a value; it contains 0, so that zero padding is exact."""
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    if method == "minmax" or high - low < 1e-10:
        return Int8Range(low, high)
    if method == "percentile":
        low, high = _percentile(histogram)
        return Int8Range(min(low, 0.0), max(high, 0.0))
    cost = _squared_error if method == "mse" else _divergence
    centers, counts = _nonempty(histogram)
    best, least = Int8Range(low, high), cost(centers, counts, Int8Range(low, high))
    for side in ("high", "low", "high"):  # one side after the other
        for share in _SHARES:
            trial = (
                Int8Range(best.low, high * share)
                if side == "high"
                else Int8Range(low * share, best.high)
            )
            if trial.high - trial.low < 1e-10:
                continue
            found = cost(centers, counts, trial)
            if found < least:
                best, least = trial, found
    return best


def _percentile(histogram: ValueHistogram) -> tuple[float, float]:
    edges = np.linspace(histogram.low, histogram.high, len(histogram.counts) + 1)
    share = np.cumsum(histogram.counts) / max(histogram.counts.sum(), 1)
    first = int(np.searchsorted(share, _OUTSIDE))
    last = int(np.searchsorted(share, 1 - _OUTSIDE))
    return float(edges[first]), float(edges[min(last + 1, len(edges) - 1)])


def _nonempty(histogram: ValueHistogram) -> tuple[Array, Array]:
    width = (histogram.high - histogram.low) / len(histogram.counts)
    centers = histogram.low + width * (np.arange(len(histogram.counts)) + 0.5)
    kept = histogram.counts > 0
    return centers[kept], histogram.counts[kept].astype(np.float64)


def _squared_error(centers: Array, counts: Array, trial: Int8Range) -> float:
    """The error of clipping, plus that of rounding: a twelfth of the step's square."""
    outside = centers - np.clip(centers, trial.low, trial.high)
    rounding = np.where(outside == 0, float(trial.scale) ** 2 / 12, 0.0)
    rounding[np.abs(centers).argmin()] = 0.0  # zero is exact, and what Relu cuts off is zero
    return float((counts * (outside * outside + rounding)).sum())


def _divergence(centers: Array, counts: Array, trial: Int8Range) -> float:
    """KL divergence from the numbers' distribution to that after clipping and rounding."""
    total = counts.sum()
    levels = np.rint((np.clip(centers, trial.low, trial.high) - trial.low) / float(trial.scale))
    places = levels.astype(np.int64)
    inside = (centers >= trial.low) & (centers <= trial.high)
    sums = np.bincount(places[inside], counts[inside], _LEVELS)
    members = np.bincount(places[inside], minlength=_LEVELS)
    after = np.full(len(counts), 1e-9 * total)
    after[inside] = (sums / np.maximum(members, 1))[places[inside]]
    before, after = counts / total, after / after.sum()
    return float((before * np.log(before / after)).sum())
