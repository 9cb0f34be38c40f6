"""BatchWeight: how much a part of a batch counts in the mean of its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a device that trains a saved program has no onnx-ir
    import onnx_ir as ir

    from onward.losses.loss import Loss
    from onward.programs.label_ranges import LabelRange


# operators whose result has the elements of their first input
_MOVING = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


@dataclass(frozen=True, kw_only=True)
class BatchWeight:
    """What the mean of a loss is taken over.

    The loss of a batch is the mean of the losses of its parts, by these weights; of a loss that is
    a sum, it is their sum.
    """

    target: str | None = None  # the feed with the targets; None: rows of the first feed count
    counts_rows: bool = False  # rows of the target count, not its elements
    ignored: int | None = None  # the label that does not count
    classes: tuple[float, ...] | None = None  # the weights of classes; None: all count the same
    is_sum: bool = False
    is_approximate: bool = False  # another loss counts differently, or computed labels count

    def total(self, weights: float) -> float:
        """What the losses of the parts, times their weights, are divided by.

        `weights` is the sum of the weights of all parts.
        """
        return min(weights, 1.0) if self.is_sum else weights

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
        if self.counts_rows or self.target is None:
            return float(size)
        if self.ignored is None and self.classes is None:
            return float(size)
        labels = np.asarray(target)
        if labels.dtype.kind not in "iu":  # probabilities of classes
            return float(size)
        counted = labels if self.ignored is None else labels[labels != self.ignored]
        if self.classes is None:
            return float(counted.size)
        known = counted[(counted >= 0) & (counted < len(self.classes))]
        return float(np.asarray(self.classes, np.float64)[known].sum())

    def rows(self, feeds: Mapping[str, Any]) -> int:
        """How many rows these feeds have.

        >>> BatchWeight(target="y").rows({"scale": np.ones(1), "y": np.zeros((3, 5))})
        3
        """
        shape = np.shape(self._size(feeds)[0])
        return int(shape[0]) if shape else 1

    def is_empty(self, feeds: Mapping[str, Any]) -> bool:
        """Whether these feeds have no rows; rows of weight 0 are rows."""
        return not self._size(feeds)[1]

    @property
    def hides_labels(self) -> bool:
        """Whether labels count that the model computes: the rows count instead."""
        return self.counts_rows and (self.ignored is not None or self.classes is not None)

    def _size(self, feeds: Mapping[str, Any]) -> tuple[Any, int]:
        """The feed with what the mean is taken over, and how many elements it has."""
        target = next(iter(feeds.values()), ()) if self.target is None else feeds.get(self.target)
        if target is None:
            return None, 1
        shape = np.shape(target)
        by_rows = self.counts_rows or self.target is None
        return target, (shape or (1,))[0] if by_rows else int(np.prod(shape))


def batch_weight(loss: Loss, labels: tuple[LabelRange, ...], graph: ir.Graph) -> BatchWeight:
    """The weight of a batch for a loss; of several losses, for the first one.

    The rows of the graph's inputs count where the loss has no target, or the graph computes it.
    """
    first, *others = _parts(loss)
    weight = _weight_of_loss(first)
    unequal = any(replace(_weight_of_loss(each), target=weight.target) != weight for each in others)
    weight = replace(weight, is_approximate=unequal)
    if weight.target is not None:
        return _with_fed_target(weight, graph)
    if labels:  # the model computes its loss itself
        return replace(weight, target=labels[0].name, ignored=labels[0].ignored)
    return replace(weight, target=_batched_input(graph.inputs), counts_rows=True)


def _with_fed_target(weight: BatchWeight, graph: ir.Graph) -> BatchWeight:
    """The weight by a feed, where the graph computes the target of the loss."""
    value = _value(graph, str(weight.target))
    if value is not None and value.is_graph_input():
        return weight
    while value is not None and not value.is_graph_input():
        node = value.producer()
        moves = node is not None and node.domain == "" and node.op_type in _MOVING
        value = node.inputs[0] if node is not None and moves else None
    counts_labels = weight.ignored is not None or weight.classes is not None
    if value is not None and not weight.counts_rows and (not counts_labels or _is_integer(value)):
        return replace(weight, target=str(value.name))
    return replace(
        weight,
        target=_batched_input(graph.inputs),
        counts_rows=True,
        is_approximate=weight.is_approximate or counts_labels,
    )


def _value(graph: ir.Graph, name: str) -> ir.Value | None:
    """The value of that name; None if it is an initializer."""
    made = (value for node in graph for value in node.outputs)
    return next((v for v in (*graph.inputs, *made) if v.name == name), None)


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _parts(loss: Loss) -> list[Loss]:
    """The losses in a sum of losses; any other loss is one part."""
    parts = getattr(loss, "losses", None)
    return [each for part in parts() for each in _parts(part)] if callable(parts) else [loss]


def _weight_of_loss(loss: Loss) -> BatchWeight:
    classes = getattr(loss, "weight", None)
    counts_rows = bool(getattr(loss, "is_mean_of_rows", False))
    return BatchWeight(
        target=getattr(loss, "target", None),
        counts_rows=counts_rows,
        ignored=getattr(loss, "ignore_index", None),
        classes=classes if isinstance(classes, tuple) and _are_numbers(classes) else None,
        is_sum=getattr(loss, "reduction", "mean") != "mean" and not counts_rows,
    )


def _batched_input(inputs: Sequence[ir.Value]) -> str | None:
    """The first input whose first axis has no fixed size; None: there is none."""
    for value in inputs:
        if value.shape is not None and len(value.shape) and not isinstance(value.shape[0], int):
            return str(value.name)
    return None


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
