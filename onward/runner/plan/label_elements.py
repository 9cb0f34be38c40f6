"""What losses of rows with one class each share: the element of the label, and which labels fit."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Loss, Values, integers, sizes_of
from onward.losses.loss import target as target_of


def label_elements(op: GraphOps, loss: Loss, x: ir.Value, values: Values, target: str) -> ir.Value:
    """The element of x (rows, classes) at the label of each row: (rows,)."""
    labels = integers(op, loss, target_of(op, loss, values, target, "int64", sizes_of(x)[:1]))
    found: ir.Value = op.Squeeze(op.GatherElements(x, op.Unsqueeze(labels, [1]), axis=1), [1])
    return found


def class_range(x: ir.Value) -> tuple[int, int | None]:
    """The least label of x (rows, classes), and one above the greatest; None: not known."""
    classes = sizes_of(x)[1]
    return 0, classes if isinstance(classes, int) else None
