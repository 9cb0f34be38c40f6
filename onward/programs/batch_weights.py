"""BatchWeight: how much a part of a batch counts in the mean of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a device that trains a saved program has no onnx-ir
    from onward.losses.loss import Loss
    from onward.programs.label_ranges import LabelRange


@dataclass(frozen=True, kw_only=True)
class BatchWeight:
    """What the mean of a loss is taken over.

    The loss of a batch is the mean of the losses of its parts, by these weights. A loss that is a
    sum counts each part once.
    """

    target: str | None = None  # the feed with the targets; None: rows of the first feed count
    ignored: int | None = None  # the label that does not count
    classes: tuple[float, ...] | None = None  # the weights of classes; None: all count the same
    is_sum: bool = False

    def of(self, feeds: Mapping[str, Any]) -> float:
        """The weight of these feeds; for a sum, 1, or 0 if they are empty.

        >>> BatchWeight(target="y", ignored=-1).of({"y": np.array([[3, -1], [2, 5]])})
        3.0
        """
        target, size = self._size(feeds)
        if target is None:
            return 1.0
        if self.is_sum:
            return float(size > 0)
        if self.target is None or (self.ignored is None and self.classes is None):
            return float(size)
        labels = np.asarray(target)
        if labels.dtype.kind not in "iu":  # probabilities of classes
            return float(size)
        counted = labels if self.ignored is None else labels[labels != self.ignored]
        if self.classes is None:
            return float(counted.size)
        known = counted[(counted >= 0) & (counted < len(self.classes))]
        return float(np.asarray(self.classes, np.float64)[known].sum())

    def is_empty(self, feeds: Mapping[str, Any]) -> bool:
        """Whether these feeds have no rows; rows of weight 0 are rows."""
        return not self._size(feeds)[1]

    def _size(self, feeds: Mapping[str, Any]) -> tuple[Any, int]:
        """The feed with what the mean is taken over, and how many elements it has."""
        target = next(iter(feeds.values()), ()) if self.target is None else feeds.get(self.target)
        if target is None:
            return None, 1
        shape = np.shape(target)
        return target, int(np.prod(shape)) if self.target is not None else (shape or (1,))[0]


def batch_weight(loss: Loss, labels: tuple[LabelRange, ...]) -> BatchWeight:
    """The weight of a batch for a loss; of several losses, for the first one."""
    parts = getattr(loss, "losses", None)
    first = next(iter(parts()), loss) if callable(parts) else loss
    ignored, classes = getattr(first, "ignore_index", None), getattr(first, "weight", None)
    target = getattr(first, "target", None)
    if target is None and labels:  # the model computes its loss itself
        target, ignored = labels[0].name, labels[0].ignored
    return BatchWeight(
        target=target,
        ignored=ignored,
        classes=classes if isinstance(classes, tuple) and _are_numbers(classes) else None,
        is_sum=getattr(first, "reduction", "mean") != "mean",
    )


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
