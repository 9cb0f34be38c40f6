"""Find the inputs of a model that contain class labels, and their numbers of classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onward.graph.scopes import origin, standard, walk
from onward.losses.classification import CrossEntropy
from onward.losses.combined import Total
from onward.losses.loss import Loss
from onward.passes.value_facts import attribute
from onward.programs.label_ranges import LabelRange

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_SAME = ("Cast", "Identity", "Reshape")  # they keep labels


def find_labels(model: ir.Model) -> Iterator[LabelRange]:
    """The class labels among the inputs, with the number of classes of the scores."""
    for node in walk(model.graph):
        if node.op_type not in _LOSSES:
            continue
        scores, labels = node.inputs[:2]
        labels = None if labels is None else origin(labels, standard(_SAME))
        shape = None if scores is None else scores.shape
        if labels is None or not labels.is_graph_input() or shape is None or len(shape) < 2:
            continue
        if isinstance(shape[1], int):
            ignored = attribute(node, "ignore_index", None)
            yield LabelRange(
                name=str(labels.name),
                classes=shape[1],
                ignored=None if ignored is None else int(ignored),
            )


def labels_of_loss(loss: Loss, values: Mapping[str, ir.Value]) -> Iterator[LabelRange]:
    """The class labels that a loss declares."""
    parts = loss.losses() if isinstance(loss, Total) else [loss]
    for part in parts:
        if not isinstance(part, CrossEntropy):
            continue
        allowed = part.allowed_labels(values)
        if allowed is not None and allowed[1] is not None:
            yield LabelRange(name=part.target, classes=allowed[1], ignored=part.ignore_index)
