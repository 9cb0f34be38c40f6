"""Matching the values of two models, by computation or by name."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.graph.value_matching import pair_values

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[2,2] x) => (float[2,2] y) '


def parse(body: str, weights: str = "float[2,2] w = {1,2,3,4}") -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f"{HEAD} <{weights}> {{ {body} }}"))


def paired(a: ir.Model, b: ir.Model) -> dict[str, str]:
    pairs = pair_values(a, b, {"x": "x"})
    return {str(pair.first.name): str(pair.second.name) for pair in pairs}


def test_renamed_values_match_by_computation() -> None:
    a = parse("h = MatMul(x, w) k = Relu(h) y = Neg(k)")
    b = parse("p = MatMul(x, w) q = Relu(p) y = Neg(q)")
    assert paired(a, b) == {"h": "p", "k": "q", "y": "y"}


def test_renumbered_values_match_by_computation() -> None:
    a = parse("h1 = Relu(x) h2 = Neg(h1) y = Exp(h2)")
    b = parse("h2 = Relu(x) h1 = Neg(h2) y = Exp(h1)")
    assert paired(a, b) == {"h1": "h2", "h2": "h1", "y": "y"}


def test_values_after_a_changed_weight_match_by_computation() -> None:
    a = parse("h = MatMul(x, w) y = Neg(h)")
    b = parse("p = MatMul(x, w) y = Neg(p)", "float[2,2] w = {1,2,3,5}")
    assert paired(a, b) == {"h": "p", "y": "y"}


def test_values_after_another_operator_match_by_name() -> None:
    a = parse("h = Relu(x) k = Abs(h) y = Neg(k)")
    b = parse("h = Softplus(x) k = Abs(h) y = Neg(k)")
    pairs = pair_values(a, b, {"x": "x"})
    assert [(str(p.first.name), p.by_name) for p in pairs] == [
        ("h", True),
        ("k", True),
        ("y", True),
    ]


def test_weights_of_one_shape_match_by_content() -> None:
    weights = "float[2,2] a = {1,1,1,1}, float[2,2] b = {2,2,2,2}"
    swapped = "float[2,2] u = {2,2,2,2}, float[2,2] v = {1,1,1,1}"
    a = parse("p = MatMul(x, a) q = MatMul(x, b) y = Sub(p, q)", weights)
    b = parse("q = MatMul(x, u) p = MatMul(x, v) y = Sub(p, q)", swapped)
    assert paired(a, b) == {"p": "p", "q": "q", "y": "y"}


def test_different_attributes_do_not_match() -> None:
    a, b = parse("h = Softmax<axis=0>(x) y = Neg(h)"), parse("k = Softmax<axis=1>(x) y = Neg(k)")
    assert paired(a, b) == {"y": "y"}


def test_a_number_as_name_matches_only_the_same_operator() -> None:
    def numbered(op_type: str) -> ir.Model:
        model = parse(f"h = {op_type}(x) y = Neg(h)")
        model.graph[0].outputs[0].name = "7"
        return model

    assert paired(numbered("Relu"), numbered("Exp")) == {"y": "y"}


def test_inputs_may_have_other_names() -> None:
    a = parse("h = Relu(x) y = Neg(h)")
    b = ir.from_proto(onnx.parser.parse_model(f"{HEAD} {{ k = Relu(x) y = Neg(k) }}"))
    b.graph.inputs[0].name = "data"
    pairs = pair_values(a, b, {"x": "data"})
    assert [str(pair.second.name) for pair in pairs] == ["k", "y"]
