"""The gradient of attention as one call, and as the nodes that the call stands for."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.composites import inline_calls, is_call
from onward.passes.pipelines import PREPARE, TRAINING
from tests.gradients.structure import structure

SHAPES: dict[str, Any] = {
    "four axes": (("batch", 4, "length", 8), ("batch", 2, "keys", 8), {}),
    "three axes": (
        ("batch", "length", 32),
        ("batch", "keys", 16),
        {"q_num_heads": 4, "kv_num_heads": 2},
    ),
}


def attention(shapes: str, masked: bool, **attributes: Any) -> ir.Model:
    op = OpBuilder()
    query, key, heads = SHAPES[shapes]
    given = [op.input("q", "float32", query)]
    given += [op.input(name, "float32", key) for name in "kv"]
    if masked:
        given.append(op.input("mask", "bool", ("batch", 1, 1, "keys")))
    return op.model(y=op.Attention(*given, **heads, **attributes))


def differentiated(model: ir.Model, **options: Any) -> ir.Model:
    prepared = PREPARE(model.clone())
    extend(prepared, {"y": "dy"}, ["q", "k", "v"], GRADIENTS, **options)
    return prepared


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_call_has_the_forward_nodes_interface(shapes: str, masked: bool) -> None:
    model = differentiated(attention(shapes, masked, is_causal=1, scale=0.5), composites=True)
    (forward,) = (node for node in model.graph if node.op_type == "Attention")
    (call,) = filter(is_call, model.graph)
    assert call.op_type == "AttentionGrad"
    assert list(call.inputs[: 3 + masked]) == list(forward.inputs)
    assert list(call.inputs[3 + masked : 7]) == [None] * (4 - masked)
    assert call.inputs[7] is forward.outputs[0]
    assert call.inputs[11] is not None and call.inputs[11].name == "dy"
    assert list(call.attributes["wrt"].value) == [0, 1, 2]
    for name in ("is_causal", "scale"):
        assert call.attributes[name].value == forward.attributes[name].value


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"scale": 0.5, "softcap": 2.0}])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_inlined_call_is_what_the_rule_writes(
    shapes: str, masked: bool, attributes: dict[str, Any]
) -> None:
    model = attention(shapes, masked, **attributes)
    kept = differentiated(model, composites=True)
    inlined = TRAINING(inline_calls(kept))
    assert structure(inlined) == structure(TRAINING(differentiated(model)))
