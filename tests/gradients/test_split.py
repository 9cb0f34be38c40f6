"""Split: pieces that run one after the other give what the whole graph gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.gradients.split import GraphPiece, split

RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.normal(size=(5, 3)).astype(np.float32)}


def differentiated() -> ir.Model:
    """loss = mean(tanh(x w) v), with the gradients of x, w and v"""
    op = onward.OpBuilder()
    w, v = (op.initializer(n, RNG.normal(size=(3, 3)).astype(np.float32)) for n in ("w", "v"))
    h = op.Tanh(op.MatMul(op.input("x", "float32", ("n", 3)), w))
    h.name = "hidden"
    loss = op.ReduceMean(op.MatMul(h, v), keepdims=0)
    return onward.gradient(op.model(loss=loss), "loss", ["x", "w", "v"])


def run(model: ir.Model, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onward.InferenceSession(model)
    names = [value.name for value in session.get_outputs()]
    taken = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, taken)))


def run_pieces(pieces: list[GraphPiece]) -> dict[str, Any]:
    found: dict[str, Any] = dict(FEEDS)
    for piece in pieces:
        found |= run(piece.model, found)
    return found


@pytest.mark.parametrize(
    "groups",
    [
        [["loss"], ["x_grad", "w_grad", "v_grad"]],
        [["loss"], ["x_grad"], ["w_grad", "v_grad"]],
        [["hidden"], ["loss"], ["v_grad"], ["w_grad", "x_grad"]],
        [["loss"], ["loss", "w_grad"]],
    ],
    ids=str,
)
def test_pieces_match_the_whole_model(groups: list[list[str]]) -> None:
    model = differentiated()
    expected, found = run(model, FEEDS), run_pieces(split(model, groups))
    for name in {name for group in groups for name in group if name in expected}:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6, err_msg=name)


def test_no_node_is_in_two_pieces() -> None:
    model = differentiated()
    pieces = split(model, [["loss"], ["x_grad"], ["w_grad", "v_grad"]])
    assert sum(len(piece.model.graph) for piece in pieces) == len(model.graph)
    assert pieces[0].takes == [] and {*pieces[1].takes} <= {*pieces[0].gives, "loss"}


def test_the_model_itself_stays_as_it_is() -> None:
    model = differentiated()
    before = [node.op_type for node in model.graph], [v.name for v in model.graph.outputs]
    split(model, [["loss"], ["w_grad"]])
    assert before == ([n.op_type for n in model.graph], [v.name for v in model.graph.outputs])


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the graph has no value 'los' to split at\n.*'loss'"):
        split(differentiated(), [["los"]])
