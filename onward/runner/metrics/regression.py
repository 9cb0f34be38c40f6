"""Metrics of predicted numbers: MAE, MSE, RMSE, MAPE, R2, explained variance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.runner.metrics.exact_sums import ExactSums
from onward.runner.metrics.metric import (
    Array,
    no_rows,
    read_numbers,
    read_weights,
    refuse_nan,
    shown,
    without_ones,
)
from onward.settings import check_fields, choice, explain_keywords

_LARGEST = 1e100  # the product of three such numbers is a float64
_MEANS: dict[str, Callable[[Array, Array], tuple[Array, ...]]] = {  # of errors and targets
    "mae": lambda d, t: (np.abs(d),),
    "mse": lambda d, t: (d, d),
    "rmse": lambda d, t: (d, d),
    "mape": lambda d, t: (np.abs(d) / np.abs(t),),
}


@explain_keywords
@dataclass(kw_only=True)
class MeanError:
    """A mean over all numbers, of errors d = target - output.

    mae: abs(d). mse: d². rmse: the square root of the mse. mape: abs(d / target), a share and not
    per cent; NaN if a target is 0.

    Attributes:
        measure: "mae", "mse", "rmse" or "mape"

    >>> rmse = MeanError(measure="rmse")
    >>> rmse.update([1.0, 2.0], [4.0, 5.0])
    >>> rmse.result()
    3.0
    """

    measure: str = "mae"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, measure=choice(*_MEANS))
        self.name = self.measure
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._sum, self._weight = ExactSums(), ExactSums()
        self._undefined = False

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        t, d, w, _ = _read_pairs(self.name, outputs, targets, weights)
        if self.measure == "mape" and not t.all():
            self._undefined = True
            t, d, w = t[t != 0], d[t != 0], w[t != 0]
        self._sum.add_products(*_MEANS[self.measure](d, t), w)
        self._weight.add(w)

    def merge(self, other: MeanError) -> None:
        """Add the rows of another metric."""
        self._sum.merge(other._sum)
        self._weight.merge(other._weight)
        self._undefined |= other._undefined

    def result(self) -> float:
        """The mean over all numbers."""
        weight = self._weight.total()
        if self._undefined:
            return math.nan
        if not weight:
            raise no_rows(self.name)
        mean = float(self._sum.total() / weight)
        return math.sqrt(mean) if self.measure == "rmse" else mean


@explain_keywords
@dataclass(kw_only=True)
class VarianceShare:
    """The share of the targets' variance that the outputs explain.

    r2 = 1 - mean(d²) / var(t), explained_variance = 1 - var(d) / var(t), with d = t - y. Of outputs
    (rows, columns), the mean over the columns whose targets vary; with more axes, all numbers are
    one column. NaN if no targets vary.

    Attributes:
        measure: "r2" or "explained_variance"

    >>> r2 = VarianceShare(measure="r2")
    >>> r2.update([2.5, 0.0, 2.0, 8.0], [3.0, -0.5, 2.0, 7.0])
    >>> round(r2.result(), 4)
    0.9486
    """

    measure: str = "r2"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, measure=choice("r2", "explained_variance"))
        self.name = self.measure
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._columns = 0  # not known
        self._sums: dict[str, ExactSums] = {}

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        t, d, w, columns = _read_pairs(self.name, outputs, targets, weights)
        shape = without_ones(np.shape(targets))
        count = shape[1] if len(shape) == 2 else 1
        if self._columns not in (0, count):
            raise MetricError(
                f"{self.name}: this batch has {count} columns, earlier ones had {self._columns}\n"
                "call reset() before another model"
            )
        if not self._columns:
            self._columns = count
            self._sums = {name: ExactSums(count) for name in ("w", "t", "tt", "d", "dd")}
        column = columns if count > 1 else None
        for name, factors in {"w": (w,), "t": (t, w), "tt": (t, t, w),
                              "d": (d, w), "dd": (d, d, w)}.items():  # fmt: skip
            self._sums[name].add_products(*factors, cells=column)

    def merge(self, other: VarianceShare) -> None:
        """Add the rows of another metric."""
        self._columns = self._columns or other._columns
        for name, sums in other._sums.items():
            self._sums.setdefault(name, ExactSums(sums.cells)).merge(sums)

    def result(self) -> float:
        """The mean over the columns of all rows."""
        if not self._columns or not self._sums["w"].total():
            raise no_rows(self.name)
        totals = zip(*(self._sums[name].totals() for name in ("w", "t", "tt", "d", "dd")))
        shares = []
        for w, t, tt, d, dd in totals:
            if w and (varied := tt - t * t / w):
                missed = dd - (d * d / w if self.measure == "explained_variance" else 0)
                shares.append(1 - missed / varied)
        return float(sum(shares, Fraction(0)) / len(shares)) if shares else math.nan


def _read_pairs(
    metric: str, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array, Array]:
    """Of each number that counts: its target t, t - output, its weight, its column."""
    y, t = read_numbers(metric, "outputs", outputs), read_numbers(metric, "targets", targets)
    if without_ones(y.shape) != without_ones(t.shape):
        raise MetricError(
            f"{metric}: outputs have shape {shown(y.shape)}, targets {shown(t.shape)}\n"
            "give a target for each output"
        )
    w = read_weights(metric, weights, t.shape).reshape(-1)
    used = np.flatnonzero(w > 0)
    columns = used % math.prod(t.shape[1:]) if t.size else used
    pair = [each.reshape(-1)[used].astype(np.float64) for each in (y, t)]
    for what, numbers in zip(("outputs", "targets"), pair):
        refuse_nan(metric, what, numbers, used, t.shape)
        if numbers.size and np.abs(numbers).max() > _LARGEST:
            raise MetricError(
                f"{metric}: {what} has a number beyond {_LARGEST:g}\n"
                "look at the model's weights: training may have diverged"
            )
    return pair[1], pair[1] - pair[0], w[used], columns
