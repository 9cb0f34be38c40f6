"""The protocol of metrics, and the checks of batches that all metrics share.

A metric reads the outputs and targets of one batch after another. Its result is that of all rows
at once, bit for bit, however the rows were divided into batches and processes.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError
from onward.message_text import format_sizes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_NOT_NUMBERS = "USOMmc"  # numpy's kinds: texts, objects, dates, complex numbers


class Metric(Protocol):
    """A number that is computed over batches.

    `result` raises a MetricError if no row was counted. It returns NaN where the rows do not
    define it: AUC if all labels are equal, R2 if all targets are equal.
    """

    @property
    def name(self) -> str:
        """The name for tables and messages: "accuracy"."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether the better of two models has the higher number."""
        ...

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch; weights are one number per row or per target."""
        ...

    def result(self) -> float:
        """The metric of all rows since the last reset."""
        ...

    def reset(self) -> None:
        """Forget all rows."""
        ...

    def merge(self, other: Self) -> None:
        """Add the rows of a metric with the same settings, such as that of another process."""
        ...


def read_numbers(metric: str, what: str, given: ArrayLike) -> Array:
    """An array of real numbers with at least one axis, of the type that it has."""
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind in _NOT_NUMBERS:
        raise MetricError(
            f"{metric}: {what} must be an array of numbers, not {type(given).__name__} of "
            f"{array.dtype}\nencode names as numbers first"
        )
    if array.ndim == 0:
        raise MetricError(f"{metric}: {what} is one number, not a batch\ngive an array of rows")
    return array


def read_weights(metric: str, given: ArrayLike | None, shape: Shape) -> Array:
    """The weight of each target, in the targets' shape; 1 if none are given."""
    if given is None:
        return np.ones(shape)
    weights = read_numbers(metric, "weights", given).astype(np.float64)
    if weights.shape not in (shape, shape[:1]):
        raise MetricError(
            f"{metric}: weights have shape {shown(weights.shape)}, targets {shown(shape)}\n"
            "give one weight per row or per target"
        )
    if weights.size and not (weights.min() >= 0 and weights.max() < np.inf):
        raise MetricError(
            f"{metric}: weights must be finite numbers, at least 0\n"
            "give a row that must not count the weight 0"
        )
    expanded = weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim))
    return np.broadcast_to(expanded, shape)


def refuse_nan(metric: str, what: str, array: Array, positions: Array, shape: Shape) -> None:
    """Refuse rows with NaN; `positions` are the rows' places in a batch of this shape."""
    if not array.size or not np.isnan(np.max(array)):  # max keeps a NaN
        return
    row = int(np.argmax(np.isnan(array.reshape(len(array), -1)).any(axis=1)))
    place = format_sizes(int(i) for i in np.unravel_index(positions[row], shape))
    raise MetricError(
        f"{metric}: {what} has NaN at row {place}\n"
        "look at the model's inputs and weights: training may have diverged"
    )


def no_rows(metric: str) -> MetricError:
    """The error for a result without rows."""
    return MetricError(
        f"{metric} has no rows\n"
        "call update first, with rows that are not all ignored or of weight 0"
    )


def without_ones(shape: Shape) -> Shape:
    """A shape without axes of size 1 after the first: (n, 1) and (n,) hold the same rows."""
    return shape[:1] + tuple(size for size in shape[1:] if size != 1)


def shown(shape: Shape) -> str:
    """A shape as text for messages."""
    return f"[{format_sizes(shape)}]"
