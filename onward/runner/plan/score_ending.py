"""The scores that a model turns into probabilities at its end: what a loss should read instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.value_facts import attribute, constant, input_of, is_scalar, made_by

TWO_PROBABILITIES = "Sigmoid and Concat"  # the end of a binary classifier: 1 - p and p
TWO_SCORES = "pair of 1 - score and score"  # of one score, whose label is positive above 0
SHARES = "shares"  # probabilities without scores: numbers of each class, divided by their sum
CLIPPED, TWO_CLIPPED = "Clip", "Clip and Concat"  # (Clip(score, -1, 1) + 1) / 2
_NEAR = 1e-3  # to 0 or 1: a Clip that keeps a logarithm finite
_POSITIVE = ("Sigmoid", "Softmax", "Exp", "Relu", "Softplus", "Abs")
_VIEWS = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")


def scores_before_probabilities(output: ir.Value) -> tuple[ir.Value, str] | None:
    """The value before the final Softmax or Sigmoid, and its name; None: there is none.

    Views of the probabilities may follow it, and a Clip that keeps them from 0 and 1; both may be
    written out. The two probabilities 1 - p and p of a binary classifier, joined as scikit-learn's
    converter writes them, have the score of p; 1 - s and s, where the label is that of a positive
    s, have s. The probabilities of one class against the rest are trained as they are before they
    are divided by their sum.
    """
    value, rank = before_views(output), _rank(output)
    joined = _joined_score(before_shares(value) or value)
    if joined is not None:
        return joined, TWO_PROBABILITIES
    single = second_of_two(value)
    cut_off = _clipped_score(single)
    if cut_off is not None and _is_one_number(cut_off):
        return cut_off, TWO_CLIPPED
    if single is not None and _is_compared_to_zero(single):
        return single, TWO_SCORES
    written = _written_softmax(value)
    if written is not None and (value is output or not _has_other_shape(written, output)):
        return written, "Softmax"
    found = _score_of(before_shares(value), rank) or _score_of(value, rank)
    if found is None:
        return None
    before, kind = found
    is_view = value is not output and _has_other_shape(before, output)
    if is_view and not (kind == "Sigmoid" and _is_one_number(before)):
        return None  # which of its axes has the classes is not known
    return found


def are_shares(output: ir.Value) -> bool:
    """Whether an output is numbers of 0 or more that are divided by their sum, or 1 - p and p."""
    value = before_views(output)
    parts = before_shares(value) or second_of_two(value)
    is_view = value is not output and _has_other_shape(value, output)
    return parts is not None and not is_view and _is_positive(parts)


def _is_positive(value: ir.Value | None) -> bool:
    """Whether a value is surely 0 or more: of exponents, sigmoids, and what adds or joins them."""
    if value is None:
        return False
    known = constant(value)
    if known is not None:
        return known.dtype.kind in "fiu" and bool((known >= 0).all())
    node = value.producer()
    if node is None or made_by(value, *_POSITIVE) is not None or before_shares(value) is not None:
        return node is not None
    if made_by(value, "Clip") is not None:
        return any(each >= 0 for each in _setting(node, 1, "min"))
    if made_by(value, "Sub") is not None:  # 1 - p
        return is_scalar(node.inputs[0], 1) and _is_positive(node.inputs[1])
    first = made_by(value, *_VIEWS, "Slice", "Gather", "ReduceSum", "ReduceMean", "Reciprocal")
    if first is not None:
        return _is_positive(node.inputs[0])
    kept = made_by(value, "Concat", "Add", "Sum", "Mean", "Mul", "Div")
    return kept is not None and all(map(_is_positive, node.inputs))


def _score_of(value: ir.Value | None, rank: int) -> tuple[ir.Value, str] | None:
    """What a Softmax over the classes, a Sigmoid or a Clip is computed from, and its name."""
    score, node = sigmoid_score(value), made_by(value, "Softmax")
    if (cut_off := _clipped_score(value)) is not None:
        return cut_off, CLIPPED
    if score is not None:
        return score, "Sigmoid"
    if node is None or node.inputs[0] is None or not _is_over_classes(node, rank):
        return None
    return node.inputs[0], "Softmax"


def sigmoid_score(value: ir.Value | None) -> ir.Value | None:
    """z of Sigmoid(z), or of 1 / (1 + exp(-z))."""
    node = made_by(value, "Sigmoid", "Reciprocal", "Div")
    if node is None or node.op_type == "Sigmoid":
        return None if node is None else node.inputs[0]
    if node.op_type == "Div" and not is_scalar(node.inputs[0], 1):
        return None
    exp = made_by(_other_term(node.inputs[-1], "Add", 1), "Exp")
    power = None if exp is None else exp.inputs[0]
    negated = made_by(power, "Neg")
    return negated.inputs[0] if negated is not None else _other_term(power, "Mul", -1)


def _clipped_score(value: ir.Value | None) -> ir.Value | None:
    """z of (Clip(z, -1, 1) + 1) / 2, the probability that belongs to a modified Huber loss."""
    half = made_by(value, "Div")
    top = half.inputs[0] if half is not None and is_scalar(half.inputs[1], 2) else None
    clip = made_by(_other_term(top, "Add", 1), "Clip")
    if clip is None:
        return None
    bounds = [_setting(clip, 1, "min"), _setting(clip, 2, "max")]
    return clip.inputs[0] if bounds == [[-1], [1]] else None


def _other_term(value: ir.Value | None, operator: str, number: float) -> ir.Value | None:
    """x of x + number, or x * number."""
    node = made_by(value, operator)
    terms = () if node is None else node.inputs
    return next((terms[1 - i] for i, each in enumerate(terms) if is_scalar(each, number)), None)


def before_views(value: ir.Value) -> ir.Value:
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


def _joined_score(value: ir.Value) -> ir.Value | None:
    """The score of p = Sigmoid(score) in Concat(1 - p, p)."""
    score = sigmoid_score(second_of_two(value))
    return score if score is not None and _is_one_number(score) else None


def _is_compared_to_zero(score: ir.Value) -> bool:
    """Whether the model's label is that of a positive score, as a LinearClassifier's is."""
    users = [use.node for use in score.uses()]
    users += [
        use.node for node in users if node.op_type in _VIEWS for use in node.outputs[0].uses()
    ]
    return any(each.op_type == "Greater" and is_scalar(each.inputs[1], 0) for each in users)


def second_of_two(value: ir.Value) -> ir.Value | None:
    """p of the two probabilities Concat(1 - p, p)."""
    node = made_by(value, "Concat")
    if node is None or len(node.inputs) != 2 or None in node.inputs:
        return None
    if attribute(node, "axis", None) not in (1, -1):
        return None
    first, second = (before_views(each) for each in node.inputs if each is not None)
    rest = made_by(first, "Sub")
    if rest is None or rest.inputs[1] is None:
        return None
    one = constant(rest.inputs[0])
    if one is None or not (one == 1).all() or before_views(rest.inputs[1]) is not second:
        return None
    return second


def before_shares(value: ir.Value) -> ir.Value | None:
    """What is divided by its sum over the classes, as scikit-learn's converter writes it.

    Normalizer, LpNormalization, and x / ReduceSum(x), also where rows of zeros become equal shares.
    """
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Normalizer":
        return node.inputs[0] if attribute(node, "norm", "MAX") == "L1" else None
    if made_by(value, "LpNormalization") is not None:
        is_sum = attribute(node, "p", 2) == 1 and attribute(node, "axis", -1) in (1, -1)
        return node.inputs[0] if is_sum else None
    if made_by(value, "Div") is None:
        return None
    top, bottom = node.inputs
    mask = _zero_mask(top, bottom)
    if mask is not None:
        top, bottom = mask
    total = made_by(bottom, "ReduceSum")
    if top is None or total is None or not attribute(total, "keepdims", 1):
        return None
    summed, absolute = total.inputs[0], made_by(total.inputs[0], "Abs")
    is_sum = summed is top or (absolute is not None and absolute.inputs[0] is top)
    return top if is_sum and _setting(total, 1, "axes") in ([1], [-1]) else None


def _zero_mask(
    top: ir.Value | None, bottom: ir.Value | None
) -> tuple[ir.Value | None, ir.Value | None] | None:
    """(x, total) of (x + m) / (total + m n), where m is 1 in rows whose total is 0."""
    first, second = made_by(top, "Add"), made_by(bottom, "Add")
    if first is None or second is None:
        return None
    (x, mask), (total, many) = first.inputs, second.inputs
    product, cast = made_by(many, "Mul"), made_by(mask, "Cast")
    inverted = made_by(None if cast is None else cast.inputs[0], "Not")
    is_zero = made_by(None if inverted is None else inverted.inputs[0], "Cast")
    is_mask = is_zero is not None and is_zero.inputs[0] is total
    return (x, total) if is_mask and product is not None and mask in product.inputs else None


def _is_over_classes(node: ir.Node, rank: int) -> bool:
    """Whether a Softmax is over the axis of classes: 1, or the last."""
    axis = attribute(node, "axis", None)
    return axis is None or axis % max(rank, 1) in (1, rank - 1)


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _is_one_number(value: ir.Value) -> bool:
    """Whether a row has one number: (rows,) or (rows, 1)."""
    return value.shape is not None and [*value.shape][1:] in ([], [1])


def _has_other_shape(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is None or b.shape is None or [*a.shape][1:] != [*b.shape][1:]
