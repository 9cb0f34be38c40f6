"""Write log probabilities of a cross entropy as the scores less one number per row.

    loss, log_prob = SoftmaxCrossEntropyLoss(scores, labels)
 -> log_prob = Sub(scores, ReduceLogSumExp(scores))
    loss = NegativeLogLikelihoodLoss(log_prob, labels)

A backward pass that recomputes cheap values then starts from the scores and these numbers, instead
of log probabilities as large as the scores, in float32. For compilers, which fuse the subtraction.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import Ops, Rules, rewrite
from onward.passes.value_facts import attribute

rule = Rules()


@rule("SoftmaxCrossEntropyLoss")
def split(op: Ops, node: ir.Node) -> list[ir.Value] | None:
    """Only where the log probabilities are read: by a gradient, or by the model."""
    scores, labels, *weights = node.inputs
    if len(node.outputs) < 2 or not _is_read(node.outputs[1]):
        return None
    log_prob = op.Sub(scores, op.ReduceLogSumExp(scores, [1], keepdims=1))
    options = {name: attribute(node, name) for name in ("ignore_index", "reduction")}
    loss = op.NegativeLogLikelihoodLoss(log_prob, labels, *weights, **options)
    return [loss, log_prob]


def split_cross_entropy(model: ir.Model) -> None:
    """Split each cross entropy whose log probabilities are read, in place."""
    rewrite(model, rule)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
