"""Agreement: whether two engines train alike, from what a few steps gave in each of them.

    losses      of the steps, one array
    gradients   of the first step, for each parameter
    changes     of each parameter over all steps
    statistics  the running statistics after the first step

The gradients of two engines differ by rounding. Adam and its relatives divide them by their own
size, so an element whose gradient is nothing but rounding (of a bias before BatchNormalization)
moves by a whole learning rate, up or down, and the next steps start from there. So changes are
compared as vectors, by their root mean square, and only the elements whose gradient is above the
difference that is tolerated of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import ProviderError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class EngineTolerance:
    """How much two engines may differ."""

    loss: float  # of the loss
    gradient: float  # of a tensor's largest gradient
    change: float  # of a parameter's change, both as a root mean square


TOLERANCES = {
    "f32": EngineTolerance(loss=2e-4, gradient=1e-3, change=5e-2),
    "bf16": EngineTolerance(loss=5e-2, gradient=5e-2, change=0.5),
    "f16": EngineTolerance(loss=5e-2, gradient=5e-2, change=0.5),
}
_NOISE = 1e-5  # of the largest gradient of all: what sums that cancel out leave
_ROUNDING = 1e-6  # of a parameter, and of a loss


@dataclass(frozen=True)
class StepResults:
    """What a few steps gave, by parameter or statistic."""

    losses: Array
    gradients: dict[str, Array]
    changes: dict[str, Array]
    statistics: dict[str, Array]

    def to_list(self) -> list[Array]:
        """The arrays in order, to be sent to another process."""
        groups = (self.gradients, self.changes, self.statistics)
        return [self.losses, *(array for group in groups for array in group.values())]

    @classmethod
    def from_list(
        cls, arrays: Sequence[Array], names: Sequence[str], statistics: Sequence[str]
    ) -> StepResults:
        losses, *others = arrays
        count = len(names)
        gradients, changes, state = others[:count], others[count : 2 * count], others[2 * count :]
        return cls(
            losses,
            dict(zip(names, gradients, strict=True)),
            dict(zip(names, changes, strict=True)),
            dict(zip(statistics, state, strict=True)),
        )


def check_agreement(ours: StepResults, expected: StepResults, tolerance: EngineTolerance) -> None:
    """Refuse an engine whose losses, gradients, changes or statistics differ."""
    losses = expected.losses
    _check("the loss", ours.losses, losses, tolerance.loss * np.abs(losses) + _ROUNDING)
    noise = _NOISE * max(map(_largest, expected.gradients.values()), default=0.0)
    for name, gradient in expected.gradients.items():
        least = tolerance.gradient * _largest(gradient) + noise
        _check(f"the gradient of {name!r}", ours.gradients[name], gradient, least)
        certain = np.abs(gradient) > least
        change, other = expected.changes[name][certain], ours.changes[name][certain]
        allowed = tolerance.change * _mean_size(change) + _ROUNDING
        if not _mean_size(other - change) <= allowed:
            raise ProviderError(f"the change of {name!r} differs from onnxruntime's")
    for name, statistic in expected.statistics.items():
        allowed = tolerance.gradient * _largest(statistic) + _ROUNDING
        _check(f"the statistic {name!r}", ours.statistics[name], statistic, allowed)


def _largest(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _mean_size(array: Array) -> float:
    """The root mean square; 0 of no element."""
    return float(np.sqrt(np.square(array, dtype=np.float64).sum() / max(1, array.size)))


def _check(what: str, ours: Array, expected: Array, allowed: Any) -> None:
    if ours.shape != expected.shape:
        raise ProviderError(f"{what} has the shape {ours.shape}, onnxruntime's {expected.shape}")
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        is_close = np.abs(ours - expected) <= allowed
    is_same = (ours == expected) | (np.isnan(ours) & np.isnan(expected))
    if not np.all(is_close | is_same):
        raise ProviderError(f"{what} differs from onnxruntime's")
