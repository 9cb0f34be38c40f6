"""Gradients as calls: what is inlined is what the rules write without calls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onward
from onward.gradients.functions import composite
from onward.gradients.model import extend, gradient
from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from onward.graph.scopes import bodies, graphs_of
from onward.passes.composites import inline_calls, is_call, outline
from onward.passes.pipelines import PREPARE, TRAINING
from tests.gradients import (
    cases_activation,
    cases_contrib_gelu_norm,
    cases_conv,
    cases_loss,
    cases_norm,
)
from tests.gradients.case import Case

FAMILIES = (cases_activation, cases_contrib_gelu_norm, cases_conv, cases_loss, cases_norm)
CASES: list[Case] = [case for family in FAMILIES for case in family.CASES]
CALLS = {
    *("BatchNormalization", "Conv", "ConvTranspose", "Gelu", "GroupNormalization", "HardSwish"),
    *("InstanceNormalization", "LayerNormalization", "LogSoftmax", "Mish", "RMSNormalization"),
    *("Softmax", "SoftmaxCrossEntropyLoss", "Swish"),
}


def differentiated(case: Case, *, composites: bool, **settings: Any) -> ir.Model:
    """The model of a case with its gradients, prepared, not yet simplified."""
    model = PREPARE(case.model(**settings))
    outputs = {
        str(y.name): f"d{y.name}" for y in model.graph.outputs if y.dtype.is_floating_point()
    }
    extend(model, outputs, case.floats, GRADIENTS, allow_unused=True, composites=composites)
    return model


def expressions(graph: ir.Graph, known: dict[ir.Value, Hashable] | None = None) -> list[Hashable]:
    """What each output of a graph is computed by; values that nodes make have no names in it."""
    seen = {} if known is None else known
    for value in graph.inputs:
        seen[value] = ("input", value.name if known is None else list(graph.inputs).index(value))

    def of(value: ir.Value | None) -> Hashable:
        if value is None or value in seen:
            return None if value is None else seen[value]
        if value.const_value is not None:
            array = value.const_value.numpy()
            return str(array.dtype), array.shape, array.tobytes()
        raise AssertionError(f"nothing makes {value}")

    for node in graph:
        inner = tuple(tuple(expressions(body, seen)) for body in bodies(node))
        plain = tuple(
            (name, repr(a.value))
            for name, a in sorted(node.attributes.items())
            if a.type is not ir.AttributeType.GRAPH
        )
        key = hash((node.domain, node.op_type, tuple(of(x) for x in node.inputs), plain, inner))
        for index, value in enumerate(node.outputs):
            seen[value] = (key, index, bool(value.name))
    return [of(value) for value in graph.outputs]


def operators(model: ir.Model) -> list[str]:
    return sorted(node.op_type for node in model.graph)


@pytest.mark.sampled("case.operator", last=True)
@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_inlined_calls_are_the_graph_without_calls(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        dynamic = False
    settings: dict[str, Any] = {"dtype": np.float32, "dynamic": dynamic}
    plain = TRAINING(differentiated(case, composites=False, **settings))
    called = differentiated(case, composites=True, **settings)
    if case.operator in CALLS:
        assert any(is_call(node) for graph in called.graphs() for node in graph)
    inlined = TRAINING(inline_calls(called))
    assert not inlined.functions and "onward" not in inlined.opset_imports
    assert operators(inlined) == operators(plain)
    assert expressions(inlined.graph) == expressions(plain.graph)


@pytest.mark.sampled("case.operator")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_calls_that_are_kept_through_training_passes_inline_to_the_same_values(case: Case) -> None:
    plain = TRAINING(differentiated(case, composites=False, dtype=np.float32))
    called = TRAINING(differentiated(case, composites=True, dtype=np.float32))
    inlined = TRAINING(inline_calls(called))
    assert operators(inlined) == operators(plain)
    assert expressions(inlined.graph) == expressions(plain.graph)


LOOP = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[2, 3] x, float[3] scale) => (float[2, 3] y) {
        trips = Constant <value_int = 3> ()
        true = Constant <value = bool {1}> ()
        y = Loop (trips, true, x) <
            body = step (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] b) {
            d = Identity (c)
            z = LayerNormalization <axis = -1> (a, scale)
            b = Gelu (z)
        }>
    }"""


def test_calls_in_the_body_of_a_loop_are_inlined_there() -> None:
    models = []
    for composites in (False, True):
        model = PREPARE(ir.from_proto(onnx.parser.parse_model(LOOP)))
        extend(model, {"y": "dy"}, ["x", "scale"], GRADIENTS, composites=composites)
        models.append(model)
    plain, called = models
    inside = [node for graph in graphs_of(called)[1:] for node in graph if is_call(node)]
    assert {node.op_type for node in inside} == {"LayerNormalizationGrad", "GeluGrad"}
    inlined, plain = TRAINING(inline_calls(called)), TRAINING(plain)
    assert operators(inlined) == operators(plain)
    rng = np.random.default_rng(5)
    feeds = {"x": rng.normal(size=(2, 3)), "scale": rng.normal(size=3), "dy": np.ones((2, 3))}
    feeds = {name: feed.astype(np.float32) for name, feed in feeds.items()}
    names = ["x_grad", "scale_grad"]
    expected, found = (onward.InferenceSession(m).run(names, feeds) for m in (plain, inlined))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_gradient_of_two_inputs_is_one_output() -> None:
    rules = GradientTable()

    @rules("Add")
    @composite("AddGrad", inputs=2)
    def add(op: Any, node: ir.Node, dy: ir.Value) -> Any:
        twice = op.Mul(dy, 2.0)
        return twice, twice

    op = onward.OpBuilder(opset=21)
    a, b = op.input("a", np.float32, [2]), op.input("b", np.float32, [2])
    model = PREPARE(op.model(y=op.Add(a, b)))
    extend(model, {"y": "dy"}, ["a", "b"], rules, composites=True)
    (call,) = (node for node in model.graph if is_call(node))
    assert list(call.attributes["wrt"].as_ints()) == [0] and len(call.outputs) == 1
    feeds = {name: np.float32([1, 3]) for name in ("a", "b", "dy")}
    for found in onward.InferenceSession(model).run(["a_grad", "b_grad"], feeds):
        np.testing.assert_array_equal(found, np.float32([2, 6]))


def test_a_gradient_that_is_dy_is_not_an_output_of_the_call() -> None:
    rules = GradientTable()

    @rules("Sub")
    @composite("SubGrad", inputs=2, unread=False)
    def sub(op: Any, node: ir.Node, dy: ir.Value) -> Any:
        return dy, op.Neg(dy)

    op = onward.OpBuilder(opset=21)
    a, b = op.input("a", np.float32, [2]), op.input("b", np.float32, [2])
    model = PREPARE(op.model(y=op.Sub(a, b)))
    extend(model, {"y": "dy"}, ["a", "b"], rules, composites=True)
    (call,) = (node for node in model.graph if is_call(node))
    assert list(call.attributes["wrt"].as_ints()) == [1]
    assert [None if x is None else x.name for x in call.inputs] == [None, None, None, "dy"]


def test_gradient_returns_calls_with_composites() -> None:
    op = onward.OpBuilder(opset=21)
    x = op.input("x", np.float32, ["batch", 4])
    model = op.model(y=op.Mish(x))
    called = gradient(model, {"y": "dy"}, "x", composites=True)
    assert [node.op_type for node in called.graph if is_call(node)] == ["MishGrad"]
    plain = gradient(model, {"y": "dy"}, "x")
    assert not plain.functions
    feeds = {name: np.float32([[-1, 0, 1, 2]]) for name in ("x", "dy")}
    (expected,) = onward.InferenceSession(plain).run(["x_grad"], feeds)
    for providers in (["cpu"], ["torch"]):
        (found,) = onward.InferenceSession(called, providers=providers).run(["x_grad"], feeds)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("composites", [False, True], ids=["written out", "calls"])
def test_a_call_that_has_a_rule_is_differentiated_by_its_body(composites: bool) -> None:
    rules = GRADIENTS | GradientTable()

    @rules("Square", domain="onward")
    @composite("SquareGrad", inputs=1)
    def square(op: Any, node: ir.Node, dy: ir.Value) -> Any:
        body = op.functions[node.op_identifier()].graph
        assert [each.op_type for each in body] == ["Mul"]
        return op.Mul(dy, op.Mul(node.inputs[0], 2.0))

    op = onward.OpBuilder(opset=21)
    x = op.input("x", np.float32, [2])
    model = PREPARE(op.model(y=op.Mul(x, x)))
    (node,) = model.graph
    outline(model.functions, model.opset_imports, [node], "Square", [x], [node.outputs[0]], {})
    extend(model, {"y": "dy"}, ["x"], rules, composites=composites)
    found = [node.op_type for node in model.graph if is_call(node)]
    assert found == ["Square", "SquareGrad"][: 1 + composites]
    feeds = {"x": np.float32([1, 3]), "dy": np.float32([1, 1])}
    (dx,) = onward.InferenceSession(model).run(["x_grad"], feeds)
    np.testing.assert_array_equal(dx, np.float32([2, 6]))
