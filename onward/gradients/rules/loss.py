"""Gradients of losses of class labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps, numpy_type
from onward.gradients.rule import GradientTable, absent
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()


@gradient("SoftmaxCrossEntropyLoss")
@absent
@composite("SoftmaxCrossEntropyLossGrad", inputs=3, outputs=2, unread=False)
def softmax_cross_entropy_loss(op: GradientOps, node: ir.Node, dy: Any, dlog: Any = None) -> Any:
    """dscores = (softmax - one hot) weight dy, with dy / sum of weights for the mean"""
    scores, labels = node.inputs[:2]
    assert scores is not None and labels is not None
    log_prob = op.output(node, 1)
    prob = op.Exp(log_prob)
    dscores = dweights = None
    if dy is not None:
        picked = _Picked(op, node, log_prob)
        dscores = op.Mul(picked.subtract_one(prob), picked.share(dy))
        dweights = picked.weight_gradient(dy)
    if dlog is not None:  # log_prob = scores - log sum of exp
        through = op.Sub(dlog, op.Mul(prob, op.ReduceSum(dlog, [1], keepdims=1)))
        dscores = through if dscores is None else op.Add(dscores, through)
    return dscores, None, dweights


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx[label] = -weight dy, with dy / sum of weights for the mean"""
    x = node.inputs[0]
    assert x is not None
    picked = _Picked(op, node, x)
    dx = op.Mul(picked.subtract_one(op.zeros_like(x)), picked.share(dy))
    return dx, None, picked.weight_gradient(dy)


class _Picked:
    """The elements that labels select: loss = -weight[label] x[label], with weight 0 if ignored."""

    def __init__(self, op: GradientOps, node: ir.Node, x: ir.Value) -> None:
        self.op, self.x = op, x
        labels, self.weights = node.inputs[1], input_of(node, 2)
        assert labels is not None
        self.reduction = attribute(node, "reduction")
        self.loss = node.outputs[0]
        ignored = attribute(node, "ignore_index")
        self.labels, self.kept = labels, None
        if ignored is not None:  # an ignored label may not be a class
            number = np.array(ignored, numpy_type(labels))
            self.kept = op.Not(op.Equal(labels, number))
            self.labels = op.Where(self.kept, labels, np.array(0, numpy_type(labels)))

    def weight(self) -> ir.Value | None:
        """Each label's weight; None: all are 1."""
        op = self.op
        if self.weights is None:
            return None if self.kept is None else op.cast_like(self.kept, self.x)
        weight = op.Gather(self.weights, self.labels)
        return weight if self.kept is None else op.Where(self.kept, weight, 0.0)

    def share(self, dy: ir.Value) -> ir.Value:
        """The factor of each label's loss: weight dy; for the mean, over the sum of weights."""
        op, weight = self.op, self.weight()
        if self.reduction == "mean":
            total = self._total(weight)
            if weight is not None:  # avoids 0 / 0 if all labels are ignored
                total = op.Where(op.Equal(total, 0.0), 1.0, total)
            dy = op.Div(dy, total)
        if weight is None and self.reduction != "none":
            return dy  # one number
        return op.Unsqueeze(dy if weight is None else op.Mul(weight, dy), [1])  # (batch, 1, ...)

    def _total(self, weight: ir.Value | None) -> Any:
        if weight is None:
            return self.op.number(self.op.product(*self.op.sizes(self.labels)), self.x)
        return self.op.ReduceSum(weight, keepdims=0)

    def subtract_one(self, x: ir.Value) -> ir.Value:
        """x with 1 subtracted at the label"""
        op, places = self.op, self.op.Unsqueeze(self.labels, [1])
        ones = op.Expand(np.array(-1.0, numpy_type(x)), op.shape_of(places))
        return op.ScatterElements(x, places, ones, axis=1, reduction="add")

    def weight_gradient(self, dy: ir.Value) -> ir.Value | None:
        """dweight[c] = sum over labels c of -x[c] dy; for the mean, of (-x[c] - loss) dy / total"""
        op = self.op
        if self.weights is None:
            return None
        places = op.Unsqueeze(self.labels, [1])
        each = op.Neg(op.Squeeze(op.GatherElements(self.x, places, axis=1), [1]))
        if self.reduction == "mean":
            each, dy = op.Sub(each, self.loss), op.Div(dy, self._total(self.weight()))
        each = op.Mul(each, dy)
        if self.kept is not None:
            each = op.Where(self.kept, each, 0.0)
        flat, labels = op.Reshape(each, [-1]), op.Reshape(self.labels, [-1])
        zeros = op.zeros_like(self.weights)
        return op.ScatterElements(zeros, labels, flat, axis=0, reduction="add")
