"""ONNX's own training operators run on any provider, as standard operators."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.backend.test.case.model import collect_testcases
from onnx.backend.test.case.test_case import TestCase

import onward
from conformance import nodes
from onward.errors import InvalidModel, UnsupportedModel
from onward.gradients.training_operators import DOMAIN, expand

PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"]
ALONE = onward.SessionOptions(disable_fallback=True)
NODE_TESTS = [
    "test_adam",
    "test_adam_multiple",
    "test_adagrad",
    "test_adagrad_multiple",
    "test_momentum",
    "test_momentum_multiple",
    "test_nesterov_momentum",
    "test_gradient_of_add",
    "test_gradient_of_add_and_mul",
]


@functools.cache
def node_tests() -> dict[str, TestCase]:
    """ONNX's tests of single operators, and those of a few together."""
    small = {case.name: case for case in collect_testcases() if case.kind == "simple"}
    return small | nodes.load()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", NODE_TESTS)
def test_onnx_own_tests_of_training_pass(name: str, provider: str) -> None:
    case = node_tests()[name]
    session = onward.InferenceSession(case.model, ALONE, [provider])
    names = [arg.name for arg in session.get_inputs()]
    for feeds, wanted in case.data_sets:
        results = session.run(None, dict(zip(names, map(nodes.read, feeds), strict=True)))
        for got, expected in zip(results, map(nodes.read, wanted), strict=True):
            nodes.check(got, expected, case)


def test_no_test_of_training_is_left_out() -> None:
    used = {
        name
        for name, case in node_tests().items()
        if any(entry.domain == DOMAIN for entry in case.model.opset_import)
    }
    assert used == set(NODE_TESTS)


# -- Gradient --------------------------------------------------------------------------------------


def parse(body: str, inputs: str = "float[2,3] x, float[3] w", outputs: str = "dx") -> Any:
    typed = ", ".join(f"float[d] {name}" for name in outputs.split())
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17, "{DOMAIN}": 1]> g ({inputs}) => ({typed}) {body}'
    )


def run(model: Any, names: list[str], **feeds: Any) -> list[Any]:
    for output in model.graph.output:
        output.type.ClearField("value")
        output.type.tensor_type.elem_type = 1
    session = onward.InferenceSession(model, ALONE, ["CPUExecutionProvider"])
    return session.run(names, {n: np.asarray(f, np.float32) for n, f in feeds.items()})


X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], np.float32)
W = np.array([1.0, 2.0, -3.0], np.float32)


def test_a_tensor_is_differentiated_as_its_sum() -> None:
    model = parse(
        f'{{ h = Mul(x, w) y = Sin(h) dx = {DOMAIN}.Gradient<xs=["x"], zs=["w"], y="y">(x, w) }}'
    )
    (dx,) = run(model, ["dx"], x=X, w=W)
    np.testing.assert_allclose(dx, np.cos(X * W) * W, rtol=1e-5)


def test_gradient_nodes_are_evaluated_at_the_given_values() -> None:
    body = f"""{{
        h = Mul(x, w)  y = Sin(h)  v = Neg(x)
        dx, dw = {DOMAIN}.Gradient<xs=["x", "w"], y="y">(v, w)
    }}"""
    model = parse(body, outputs="y dx dw")
    y, dx, dw = run(model, ["y", "dx", "dw"], x=X, w=W)
    np.testing.assert_allclose(y, np.sin(X * W), rtol=1e-5)
    np.testing.assert_allclose(dx, np.cos(-X * W) * W, rtol=1e-5)
    np.testing.assert_allclose(dw, (np.cos(-X * W) * -X).sum(0), rtol=1e-5)


def test_an_intermediate_value_can_be_replaced() -> None:
    body = f'{{ h = Mul(x, w) y = Sin(h) dx = {DOMAIN}.Gradient<xs=["h"], y="y">(x) }}'
    (dx,) = run(parse(body), ["dx"], x=X, w=W)
    np.testing.assert_allclose(dx, np.cos(X), rtol=1e-5)


def test_subgraphs_are_copied_with_the_values_given() -> None:
    body = f"""{{
        s = ReduceSum<keepdims=0>(w)  zero = Constant<value=float {{0}}>()  c = Greater(s, zero)
        y = If(c) <
            then_branch = t () => (float[2,3] a) {{ a = Mul(x, x) }},
            else_branch = e () => (float[2,3] b) {{ b = Sin(x) }}
        >
        v = Neg(x)
        dx = {DOMAIN}.Gradient<xs=["x"], y="y">(v)
    }}"""
    model = parse(body)
    np.testing.assert_allclose(run(model, ["dx"], x=X, w=W + 3)[0], -2 * X, rtol=1e-5)
    np.testing.assert_allclose(run(model, ["dx"], x=X, w=W - 3)[0], np.cos(X), rtol=1e-5)


def test_outputs_may_be_left_out() -> None:
    body = f'{{ y = Mul(x, w) "", dw = {DOMAIN}.Gradient<xs=["x", "w"], y="y">(x, w) }}'
    proto = parse(body.replace('"", dw', "unused, dw"), outputs="dw")
    proto.graph.node[-1].output[0] = ""
    np.testing.assert_allclose(run(proto, ["dw"], x=X, w=W)[0], X.sum(0), rtol=1e-5)


def test_a_gradient_of_a_gradient_is_the_second_derivative() -> None:
    body = f"""{{
        y = Sin(x)
        first = {DOMAIN}.Gradient<xs=["x"], y="y">(x)
        doubled = Add(first, first)
        dx = {DOMAIN}.Gradient<xs=["x"], y="doubled">(x)
    }}"""
    model = parse(body, "float[2,3] x")
    np.testing.assert_allclose(run(model, ["dx"], x=X)[0], -2 * np.sin(X), rtol=1e-5)


def test_names_survive_an_upgrade_of_their_nodes() -> None:
    """Softmax of opset 11 is rewritten in opset 13."""
    body = f'{{ h = Softmax(x) y = Mul(h, h) dx = {DOMAIN}.Gradient<xs=["h"], y="y">(h) }}'
    model = parse(body, "float[2,3] x")
    model.opset_import[0].version = 11
    soft = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    np.testing.assert_allclose(run(model, ["dx"], x=X)[0], 2 * soft, rtol=1e-5)


def test_a_function_may_contain_a_gradient() -> None:
    text = f"""
        <ir_version: 10, opset_import: ["": 21, "local": 1, "{DOMAIN}": 1]>
        g (float[2,3] a) => (float[2,3] da) {{ da = local.slope(a) }}
        <opset_import: ["": 21, "{DOMAIN}": 1], domain: "local">
        slope (x) => (dx) {{ y = Sin(x)  dx = {DOMAIN}.Gradient<xs=["x"], y="y">(x) }}
    """
    session = onward.InferenceSession(onnx.parser.parse_model(text), ALONE)
    np.testing.assert_allclose(session.run(None, {"a": X})[0], np.cos(X), rtol=1e-5)


def test_a_name_that_the_graph_lacks_is_refused() -> None:
    body = f'{{ y = Sin(x) dx = {DOMAIN}.Gradient<xs=["x"], y="z">(x) }}'
    with pytest.raises(InvalidModel, match="names 'z', which its graph does not have"):
        run(parse(body, "float[2,3] x"), ["dx"], x=X)


def test_as_many_values_are_given_as_named() -> None:
    body = f'{{ y = Mul(x, w) dx = {DOMAIN}.Gradient<xs=["x"], zs=["w"], y="y">(x) }}'
    with pytest.raises(InvalidModel, match="names 2 values in xs and zs and is given 1"):
        run(parse(body), ["dx"], x=X, w=W)


def test_a_gradient_inside_a_subgraph_is_refused() -> None:
    body = f"""{{
        s = ReduceSum<keepdims=0>(x)  zero = Constant<value=float {{0}}>()  c = Greater(s, zero)
        dx = If(c) <
            then_branch = t () => (float[2,3] a) {{
                i = Identity(x) y = Sin(i) a = {DOMAIN}.Gradient<xs=["i"], y="y">(i)
            }},
            else_branch = e () => (float[2,3] b) {{ b = Neg(x) }}
        >
    }}"""
    with pytest.raises(UnsupportedModel, match=r"Gradient \(node .*\) is inside a subgraph"):
        run(parse(body, "float[2,3] x"), ["dx"], x=X)


# -- updates ---------------------------------------------------------------------------------------


def update(op_type: str, count: int, states: int, **attributes: Any) -> onnx.ModelProto:
    """A model of one node that updates so many tensors."""
    kinds = ["x", "g", "v", "h"][: 2 + states]
    names = [f"{kind}{i}" for kind in kinds for i in range(count)]
    news = [f"{kind}{i}_new" for kind in kinds if kind != "g" for i in range(count)]
    node = onnx.helper.make_node(op_type, ["r", "t", *names], news, domain=DOMAIN, **attributes)
    value = onnx.helper.make_tensor_value_info
    inputs = [value("r", 1, [1]), value("t", 7, [1]), *(value(n, 1, [4]) for n in names)]
    graph = onnx.helper.make_graph([node], "g", inputs, [value(n, 1, [4]) for n in news])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_adams_rate_is_corrected_by_the_count(count: int) -> None:
    model = update("Adam", 1, 2, alpha=0.9, beta=0.999, norm_coefficient_post=0.1)
    x, g, v, h = (np.abs(np.random.default_rng(i).normal(size=4)).astype("f") for i in range(4))
    session = onward.InferenceSession(model, ALONE, ["CPUExecutionProvider"])
    feeds = {"r": np.array([0.1], "f"), "t": np.array([count]), "x0": x, "g0": g, "v0": v, "h0": h}
    new_x, new_v, new_h = session.run(None, feeds)
    rate = 0.1 * (np.sqrt(1 - 0.999**count) / (1 - 0.9**count) if count else 1.0)
    np.testing.assert_allclose(new_v, 0.9 * v + 0.1 * g, rtol=1e-5)
    np.testing.assert_allclose(new_h, 0.999 * h + 0.001 * g * g, rtol=1e-5)
    wanted = 0.9 * (x - rate * new_v / (np.sqrt(new_h) + 1e-6))
    np.testing.assert_allclose(new_x, wanted, rtol=2e-5, atol=1e-6)


def test_tensors_that_do_not_go_round_are_refused() -> None:
    model = update("Momentum", 1, 1, alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0)
    del model.graph.node[0].input[-1]
    with pytest.raises(
        InvalidModel, match="has 2 inputs after R and T: it needs 3 for each parameter"
    ):
        onward.InferenceSession(model)


def test_expanding_leaves_standard_operators_only() -> None:
    model = ir.from_proto(update("Adagrad", 2, 1, decay_factor=0.1, norm_coefficient=0.5))
    assert {node.domain for node in expand(model).graph} == {""}
    assert DOMAIN not in model.opset_imports
