"""What onnxruntime refuses in one spelling and runs in another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.facts import dims, rank
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite

_rules = Rules()


def spell(model: ir.Model) -> None:
    """Say it as onnxruntime's kernels take it; the meaning stays."""
    rewrite(model, _rules)


@_rules("Attention")
def _full_mask(op: Ops, node: ir.Node) -> Replacement:
    """A mask that broadcasts over the queries, written out: onnxruntime's kernel wants each row."""
    q, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    known = dims(mask)
    if known is None or len(known) < 2 or known[-2] != 1 or rank(q) not in (3, 4):
        return None
    at = -2 if rank(q) == 4 else 1
    if (dims(q) or ())[at] == 1:
        return None
    one = np.ones(1, np.int64)
    times = op.Shape(q, start=at, end=at + 1)
    rows = op.Expand(mask, op.Concat(times, one, axis=0))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    inputs = [*node.inputs[:3], rows, *node.inputs[4:]]
    return op.many("Attention", len(node.outputs), *inputs, **attributes)
