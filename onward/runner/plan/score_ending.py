"""The scores that a model turns into probabilities at its end: what a loss should read instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.value_facts import attribute, constant, input_of, made_by

TWO_PROBABILITIES = "Sigmoid and Concat"  # the end of a binary classifier: 1 - p and p
_NEAR = 1e-3  # to 0 or 1: a Clip that keeps a logarithm finite
_VIEWS = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")


def scores_before_probabilities(output: ir.Value) -> tuple[ir.Value, str] | None:
    """The value before the final Softmax or Sigmoid, and its name; None: there is none.

    Views of the probabilities may follow it, and a Clip that keeps them from 0 and 1; a Softmax may
    be written out. The two probabilities 1 - p and p of a binary
    classifier, joined as scikit-learn's converter writes them, have the score of p.
    """
    value, rank = _before_views(output), _rank(output)
    joined = _joined_probability(value)
    if joined is not None:
        return joined, TWO_PROBABILITIES
    written = _written_softmax(value)
    if written is not None and (value is output or not _has_other_shape(written, output)):
        return written, "Softmax"
    node = made_by(_before_normalizer(value), "Softmax", "Sigmoid")
    before = None if node is None else node.inputs[0]
    if node is None or before is None or not _is_over_classes(node, rank):
        return None
    is_view = value is not output and _has_other_shape(before, output)
    if is_view and not (node.op_type == "Sigmoid" and _is_one_number(before)):
        return None  # which of its axes has the classes is not known
    return before, node.op_type


def _before_views(value: ir.Value) -> ir.Value:
    while (node := made_by(value, *_VIEWS, "Clip")) is not None and node.inputs[0] is not None:
        if node.op_type == "Clip" and not _keeps_probabilities(node):
            break
        value = node.inputs[0]
    return value


def _keeps_probabilities(clip: ir.Node) -> bool:
    """Whether a Clip changes probabilities by little: its bounds are near 0 and 1, or beyond."""
    low, high = (_setting(clip, place, name) for place, name in ((1, "min"), (2, "max")))
    return all(each <= _NEAR for each in low) and all(each >= 1 - _NEAR for each in high)


def _written_softmax(value: ir.Value) -> ir.Value | None:
    """z of exp(z) / sum of exp(z) over the classes."""
    node = made_by(value, "Div")
    top, bottom = (None, None) if node is None else node.inputs
    exp, total = made_by(top, "Exp"), made_by(bottom, "ReduceSum")
    if exp is None or total is None or total.inputs[0] is not top:
        return None
    if not attribute(total, "keepdims", 1) or not _rank(value):
        return None
    over = [int(axis) % _rank(value) for axis in _setting(total, 1, "axes")]
    return exp.inputs[0] if over in ([1], [_rank(value) - 1]) else None


def _setting(node: ir.Node, place: int, name: str) -> list[Any]:
    """The numbers of a constant input, which is an attribute in old opsets."""
    found = constant(input_of(node, place))
    if found is None:
        found = np.asarray(attribute(node, name, None) or [])
    return found.reshape(-1).tolist()


def _joined_probability(value: ir.Value) -> ir.Value | None:
    """The score of p = Sigmoid(score) in Concat(1 - p, p)."""
    node = made_by(value, "Concat")
    if node is None or len(node.inputs) != 2 or None in node.inputs:
        return None
    if attribute(node, "axis", None) not in (1, -1):
        return None
    first, second = (_before_views(each) for each in node.inputs if each is not None)
    sigmoid, rest = made_by(second, "Sigmoid"), made_by(first, "Sub")
    if sigmoid is None or rest is None or rest.inputs[1] is None:
        return None
    one = constant(rest.inputs[0])
    if one is None or not (one == 1).all() or _before_views(rest.inputs[1]) is not second:
        return None
    score = sigmoid.inputs[0]
    return score if score is not None and _is_one_number(score) else None


def _before_normalizer(value: ir.Value) -> ir.Value:
    """What is before scikit-learn's Normalizer, which divides by the sum: 1 for a Softmax.

    The probabilities of one class against the rest are trained as they are before it.
    """
    node = value.producer()
    if node is None or node.op_type != "Normalizer" or node.inputs[0] is None:
        return value
    before = node.inputs[0]
    is_sum = attribute(node, "norm", "MAX") == "L1"
    return before if is_sum and made_by(before, "Softmax", "Sigmoid") is not None else value


def _is_over_classes(node: ir.Node, rank: int) -> bool:
    """Whether a Softmax is over the axis of classes: 1, or the last."""
    if node.op_type == "Sigmoid":
        return True
    axis = attribute(node, "axis", None)
    return axis is None or axis % max(rank, 1) in (1, rank - 1)


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _is_one_number(value: ir.Value) -> bool:
    """Whether a row has one number: (rows,) or (rows, 1)."""
    return value.shape is not None and [*value.shape][1:] in ([], [1])


def _has_other_shape(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is None or b.shape is None or [*a.shape][1:] != [*b.shape][1:]
