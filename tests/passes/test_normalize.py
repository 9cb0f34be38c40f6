"""PREPARE brings a model into its normal form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onward.errors import InvalidModel, UnsafeModel
from onward.passes.normalize import clear_negative_sizes
from onward.passes.pipelines import PREPARE
from tests.passes.running import assert_same, run_reference


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def prepared(model: onnx.ModelProto) -> ir.Model:
    return PREPARE(ir.from_proto(model))


def real(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


def test_default_domain_has_one_name() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx", 17)])
    new = prepared(model)
    assert list(new.opset_imports) == [""] and new.graph[0].domain == ""


def test_nodes_are_put_in_order() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[2] x) => (float[2] z) { y = Neg(x) z = Relu(y) }"""
    )
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [node.op_type for node in prepared(model).graph] == ["Neg", "Relu"]


def test_a_circle_is_refused() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[2] x) => (float[2] z) { y = Add(x, z) z = Relu(y) }"""
    )
    with pytest.raises(InvalidModel, match="the nodes of graph 'g' depend on each other"):
        prepared(model)


def test_names_are_unique() -> None:
    """Two branches may use one name; after PREPARE every name is unique."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (bool c, float[2] x) => (float[2] y)
        {
            y = If(c) <then_branch = a () => (float[2] r) { t = Neg(x) r = Relu(t) },
                       else_branch = b () => (float[2] r) { t = Exp(x) r = Relu(t) }>
        }"""
    )
    new = prepared(model)
    names = [v.name for graph in new.graphs() for node in graph for v in node.outputs]
    nodes = [node.name for graph in new.graphs() for node in graph]
    assert len(set(names)) == len(names) and len(set(nodes)) == len(nodes) and all(nodes)


def test_an_omitted_output_stays_omitted() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[4, 1, 3] x, float[1, 8, 3] w, float[1, 8, 2] r) => (float[1, 1, 2] c)
        { "", "", c = LSTM<hidden_size = 2>(x, w, r, "") }"""
    )
    (node,) = prepared(model).graph
    assert [value.name for value in node.outputs] == ["", "", "c"]
    assert len(node.inputs) == 3


def test_every_form_of_constant_becomes_an_initializer() -> None:
    forms = [
        {"value": helper.make_tensor("t", TensorProto.DOUBLE, [2], [1.0, 2.0])},
        {"value_int": 3},
        {"value_ints": [3, 4]},
        {"value_float": 0.5},
        {"value_floats": [0.5, 1.5]},
        {"value_string": "a"},
        {"value_strings": ["a", "b"]},
    ]
    nodes = [helper.make_node("Constant", [], [f"c{i}"], **form) for i, form in enumerate(forms)]
    nodes += [helper.make_node("Identity", [f"c{i}"], [f"y{i}"]) for i in range(len(forms))]
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(len(forms))]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [], outputs), opset_imports=[helper.make_opsetid("", 21)]
    )
    new = prepared(model)
    assert {node.op_type for node in new.graph} == {"Identity"}
    assert_same(run_reference(model, {}), run_reference(new, {}))


def test_a_constant_that_is_returned_keeps_its_name() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g () => (float[2] y) { y = Constant<value = float[2] {1, 2}>() }"""
    )
    new = prepared(model)
    assert [value.name for value in new.graph.outputs] == ["y"]
    assert_same(run_reference(model, {}), run_reference(new, {}))


def test_a_constant_with_two_values_is_refused() -> None:
    node = helper.make_node("Constant", [], ["y"], value_int=1, value_float=1.0)
    output = helper.make_empty_tensor_value_info("y")
    model = helper.make_model(helper.make_graph([node], "g", [], [output]))
    with pytest.raises(InvalidModel, match="Constant must have one attribute, not 2"):
        prepared(model)


def test_default_attributes_are_written_out() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[2, 3] x) => (float[2, 3] y) { y = Softmax(x) }"""
    )
    (node,) = prepared(model).graph
    assert node.attributes["axis"].as_int() == -1


def test_a_cast_like_becomes_a_cast() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[2] x, int32[1] t) => (int32[2] y) { y = CastLike(x, t) }"""
    )
    (node,) = prepared(model).graph
    assert node.op_type == "Cast" and node.attributes["to"].as_int() == TensorProto.INT32


def test_initializers_are_not_inputs_below_ir_version_4() -> None:
    text = """<ir_version: {}, opset_import: ["": 8]>
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Add(x, w) }}"""
    old, new = (prepared(parsed(text.format(version))) for version in (3, 4))
    assert [value.name for value in old.graph.inputs] == ["x"]
    assert [value.name for value in new.graph.inputs] == ["x", "w"]


FUNCTIONS = """<ir_version: 8, opset_import: ["": 21, "local": 1]>
    g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
    { y = local.outer<scale = 2.0>(x) z = local.outer<scale = 3.0>(y) }
    <domain: "local", opset_import: ["": 21, "local": 1]>
    outer<scale>(a) => (b) { t = local.inner<by = @scale>(a) b = Neg(t) }
    <domain: "local", opset_import: ["": 21]>
    inner<by>(a) => (b) { f = Constant<value_float = @by>() b = Mul(a, f) }
    """


def test_functions_are_inlined_with_their_attributes() -> None:
    model = parsed(FUNCTIONS)
    new = prepared(model)
    assert not new.functions and "local" not in new.opset_imports
    assert sorted(node.op_type for node in new.graph) == ["Mul", "Mul", "Neg", "Neg"]
    x = real(2, 3)
    assert_same([x * -2, x * 6], run_reference(new, {"x": x}))


def test_functions_in_branches_are_inlined() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (bool c, float[2] x) => (float[2] y)
        {
            y = If(c) <then_branch = a () => (float[2] r) { r = local.double(x) },
                       else_branch = b () => (float[2] s) { s = local.double(x) }>
        }
        <domain: "local", opset_import: ["": 21]> double (a) => (b) { b = Add(a, a) }"""
    )
    x = real(2)
    assert_same([x * 2], run_reference(prepared(model), {"c": np.array(True), "x": x}))


def test_a_function_that_returns_its_input_leaves_the_callers_names() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y, float[2] z) { y, z = local.same(x) }
        <domain: "local", opset_import: ["": 21]> same (a) => (a, b) { b = Neg(a) }"""
    )
    new, x = prepared(model), real(2)
    assert [value.name for value in new.graph.inputs] == ["x"]
    assert [value.name for value in new.graph.outputs] == ["y", "z"]
    assert_same([x, -x], run_reference(new, {"x": x}))


def test_a_call_may_leave_out_inputs_and_outputs() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.clip(x) }
        <domain: "local", opset_import: ["": 21]>
        clip (a, low) => (b, c) { b = Clip(a, low) c = Neg(a) }"""
    )
    x = real(2)
    assert_same([x], run_reference(prepared(model), {"x": x}))


def test_a_function_that_calls_itself_is_refused() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.again(x) }
        <domain: "local", opset_import: ["": 21, "local": 1]>
        again (a) => (b) { b = local.again(a) }"""
    )
    with pytest.raises(InvalidModel, match="function local::again calls itself"):
        prepared(model)


def test_functions_that_grow_without_bounds_are_refused() -> None:
    """Forty levels that double: 2 ** 40 nodes, if anybody inlined them."""
    levels = "".join(
        f'<domain: "local", opset_import: ["": 21, "local": 1]> '
        f"f{i} (a) => (b) {{ t = local.f{i + 1}(a) b = local.f{i + 1}(t) }}\n"
        for i in range(40)
    )
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y) {{ y = local.f0(x) }}
        {levels}
        <domain: "local", opset_import: ["": 21]> f40 (a) => (b) {{ b = Neg(a) }}"""
    )
    with pytest.raises(UnsafeModel, match=r"inline to \d+ nodes, more than 1000000"):
        prepared(model)


def test_a_function_of_another_version_of_a_domain_is_refused() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 21, "local": 1, "ai.onnx.ml": 3]>
        g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["": 21, "ai.onnx.ml": 2]> f (a) => (b) { b = Neg(a) }"""
    )
    with pytest.raises(InvalidModel, match=r"imports ai\.onnx\.ml 2, the model imports"):
        prepared(model)


def test_metadata_and_names_of_the_graph_stay() -> None:
    model = parsed(FUNCTIONS)
    helper.set_model_props(model, {"author": "somebody"})
    model.producer_name = "exporter"
    new = ir.to_proto(prepared(model))
    assert {p.key: p.value for p in new.metadata_props} == {"author": "somebody"}
    assert (new.producer_name, new.graph.name) == ("exporter", "g")
    assert [v.name for v in new.graph.output] == ["y", "z"]


def test_sizes_below_zero_are_unknown() -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [-1, 3, "k"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    new = clear_negative_sizes(ir.from_proto(helper.make_model(graph)))
    for value in (*new.graph.inputs, *new.graph.outputs):
        assert value.shape is not None
        assert [getattr(n, "value", n) for n in value.shape] == [None, 3, "k"]
