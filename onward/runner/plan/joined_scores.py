"""Write the probabilities of one class against the rest as one Sigmoid of all scores.

    Concat(Slice(Sigmoid(a)), Slice(Sigmoid(b)))  ->  Sigmoid(Concat(Slice(a), Slice(b)))

scikit-learn's converter joins the probabilities of the classifiers of a OneVsRestClassifier. A loss
reads scores, which are then one value. The model's results are the same.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.shapes.ml_operators import DOMAIN
from onward.passes.linear_models import write_linear_models
from onward.passes.rewrite import Names, Ops, discard, replace
from onward.passes.value_facts import attribute, constant, input_of, made_by
from onward.passes.zip_maps import unzipped
from onward.runner.plan.score_ending import (
    before_shares,
    before_views,
    second_of_two,
    sigmoid_score,
)

_AXES = (1, -1)  # of classes


def join_scores(model: ir.Model) -> ir.Model:
    """A copy with joined scores; the model itself where it has none to join."""
    if DOMAIN not in model.opset_imports:
        return model
    copy = write_linear_models(model.clone())
    ends = [node for value in copy.graph.outputs if (node := _joined_columns(unzipped(value)))]
    replaced = [_replace(node, Names(copy)) for node in dict.fromkeys(ends)]
    return copy if any(replaced) else model


def _joined_columns(output: ir.Value) -> ir.Node | None:
    """What joins the classes' probabilities, or takes one; their sum may divide them afterwards."""
    value = before_views(output)
    value = before_shares(value) or value
    value = second_of_two(value) or value
    node = made_by(value, "Concat", "Slice")
    is_over_rows = (
        node is not None and node.op_type == "Concat" and attribute(node, "axis") not in _AXES
    )
    return None if is_over_rows else node


def _replace(node: ir.Node, names: Names) -> bool:
    op = Ops()
    columns = node.inputs if node.op_type == "Concat" else node.outputs
    scores = [_column_score(op, column) for column in columns]
    if not scores or None in scores:
        discard(op)
        return False
    joined = scores[0] if len(scores) == 1 else op.Concat(*scores, axis=1)
    assert joined is not None
    replace(node, [op.Sigmoid(joined)], op, names)
    return True


def _column_score(op: Ops, column: ir.Value | None) -> ir.Value | None:
    """The score of a class: of a Sigmoid, or of the second of two probabilities."""
    node = made_by(column, "Slice")
    if node is None:
        return sigmoid_score(column)
    inner = node.inputs[0]
    if inner is None or not _takes_second(node):
        return None
    score = sigmoid_score(inner)
    if score is not None:
        return op.one("Slice", score, *node.inputs[1:], **_attributes(node))
    return sigmoid_score(second_of_two(before_shares(inner) or inner))


def _takes_second(node: ir.Node) -> bool:
    """Whether a Slice takes column 1 of two."""
    starts, ends, axes = (
        _numbers(node, place, name) for place, name in ((1, "starts"), (2, "ends"), (3, "axes"))
    )
    return starts == [1] and len(ends) == 1 and ends[0] >= 2 and axes in ([1], [-1])


def _numbers(node: ir.Node, place: int, name: str) -> list[int]:
    """A setting of a Slice: an input, or an attribute before opset 10."""
    found = constant(input_of(node, place))
    given = attribute(node, name, ()) if found is None else found.reshape(-1).tolist()
    return [int(each) for each in given]


def _attributes(node: ir.Node) -> dict[str, object]:
    return {name: each.value for name, each in node.attributes.items()}
