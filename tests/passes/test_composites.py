"""Nodes outlined as one call of domain `onward`, and inlined again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

import onward
from onward.passes.composites import FIRST_IR, VERSION, inline_calls, is_call, outline
from onward.passes.drop_unused import drop_unused


def model(*, calls: int = 1) -> ir.Model:
    """u, v = x w + 1, (x w)^2; repeated `calls` times on u."""
    op = onward.OpBuilder(opset=21)
    x, w = op.input("x", np.float32, ["n", 3]), op.input("w", np.float32, [3])
    for _ in range(calls):
        z = op.Mul(x, w)
        x, v = op.Add(z, np.float32(1)), op.Mul(z, z)
    return op.model(u=x, v=v)


def with_call(*, calls: int = 1) -> ir.Model:
    result = model(calls=calls)
    graph = result.graph
    x, w = graph.inputs
    nodes = list(graph)
    for i in range(calls):
        group = nodes[3 * i : 3 * i + 3]
        made = [group[1].outputs[0], group[2].outputs[0]]
        x, _ = outline(
            result.functions,
            {"": 21, "other": 3},
            group,
            "Both",
            [x, None, w],
            made,
            {"gain": 2.0, "k": [1]},
        )
    result.opset_imports["onward"] = VERSION
    result.ir_version = FIRST_IR
    return result


def results(given: ir.Model) -> list[Any]:
    data = ir.to_proto(given).SerializeToString()
    onnx.checker.check_model(onnx.load_from_string(data))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "w": np.float32([1, -2, 0.5])}
    return session.run(None, {arg.name: feeds[arg.name] for arg in session.get_inputs()})


def test_outlined_nodes_are_one_call_with_the_inputs_that_it_names_first() -> None:
    outlined = with_call()
    (call,) = outlined.graph
    assert is_call(call) and call.op_identifier() in outlined.functions
    assert [None if x is None else x.name for x in call.inputs][:3] == ["x", None, "w"]
    assert outlined.functions[call.op_identifier()].opset_imports == {"": 21}
    assert len(call.inputs) == 4  # and the constant that a node reads
    assert [y.name for y in call.outputs] == ["u", "v"]
    assert call.attributes.get_float("gain") == 2 and list(call.attributes.get_ints("k")) == [1]


def test_a_model_with_calls_is_standard_onnx() -> None:
    for expected, found in zip(results(model(calls=2)), results(with_call(calls=2))):
        np.testing.assert_array_equal(found, expected)


def test_inlining_restores_the_nodes() -> None:
    between = list(model(calls=2).graph)[1].outputs[0].name
    inlined = inline_calls(with_call(calls=2))
    assert [node.op_type for node in inlined.graph] == ["Mul", "Add", "Mul"] * 2
    assert list(inlined.graph)[1].outputs[0].name == between  # under their names
    assert not inlined.functions and "onward" not in inlined.opset_imports
    assert [y.name for y in inlined.graph.outputs] == ["u", "v"]
    for expected, found in zip(results(model(calls=2)), results(inlined)):
        np.testing.assert_array_equal(found, expected)


def test_calls_that_are_kept_keep_their_functions() -> None:
    outlined = with_call(calls=2)
    first = next(iter(outlined.graph))
    inlined = inline_calls(outlined, lambda call: call is first)
    assert [node.op_type for node in inlined.graph] == ["Both", "Mul", "Add", "Mul"]
    assert list(inlined.functions) == [first.op_identifier()]
    assert inlined.opset_imports["onward"] == VERSION


def test_one_function_may_have_two_callers() -> None:
    outlined = with_call()
    (call,) = outlined.graph
    (second,) = (node for node in outlined.clone().graph)
    again = ir.Node(
        "onward",
        call.op_type,
        [call.outputs[0], *call.inputs[1:]],
        [*second.attributes.values()],
        overload=call.overload,
        num_outputs=2,
    )
    for value, name in zip(again.outputs, ("u2", "v2")):
        value.name, value.type, value.shape = name, call.outputs[0].type, call.outputs[0].shape
    outlined.graph.append(again)
    outlined.graph.outputs.clear()
    outlined.graph.outputs.extend(again.outputs)
    inlined = inline_calls(outlined)
    assert [node.op_type for node in inlined.graph] == ["Mul", "Add", "Mul"] * 2
    for expected, found in zip(results(model(calls=2)), results(inlined)):
        np.testing.assert_array_equal(found, expected)


def test_unused_outputs_of_a_call_are_omitted_and_not_computed_once_inlined() -> None:
    outlined = with_call()
    (call,) = outlined.graph
    outlined.graph.outputs.pop(0)
    drop_unused(outlined)
    assert [y.name for y in call.outputs] == ["", "v"]
    inlined = drop_unused(inline_calls(outlined))
    assert [node.op_type for node in inlined.graph] == ["Mul", "Mul"]
    np.testing.assert_array_equal(results(inlined)[0], results(model())[1])


def test_unused_outputs_at_the_end_of_a_call_are_dropped() -> None:
    outlined = with_call()
    outlined.graph.outputs.pop(1)
    (call,) = drop_unused(outlined).graph
    assert [y.name for y in call.outputs] == ["u"]
    assert [node.op_type for node in drop_unused(inline_calls(outlined)).graph] == ["Mul", "Add"]


def test_a_call_saved_and_read_again_inlines_to_the_same_values() -> None:
    data = ir.to_proto(with_call()).SerializeToString()
    read = inline_calls(ir.from_proto(onnx.load_from_string(data)))
    assert [node.op_type for node in read.graph] == ["Mul", "Add", "Mul"]
    for expected, found in zip(results(model()), results(read)):
        np.testing.assert_array_equal(found, expected)


def test_calls_within_bodies_are_inlined() -> None:
    """y = (x + 1) as a call within a call, and once more outside of it"""
    op = onward.OpBuilder(opset=21)
    x = op.input("x", np.float32, [3])
    inner = op.Add(x, np.float32(1))
    outer = op.Mul(inner, inner)
    result = op.model(y=op.Add(outer, np.float32(1)))
    add, mul, _ = result.graph
    outline(result.functions, {"": 21}, [add], "Inner", [x], [inner], {})
    (call, _, _) = result.graph
    outline(result.functions, {"": 21, "onward": 1}, [call, mul], "Outer", [x], [outer], {})
    result.opset_imports["onward"], result.ir_version = VERSION, FIRST_IR
    assert [node.op_type for node in result.graph] == ["Outer", "Add"]
    kept = inline_calls(result.clone(), lambda call: call.op_type == "Inner")
    assert [node.op_type for node in kept.graph] == ["Inner", "Mul", "Add"]
    assert [name for _, name, _ in kept.functions] == ["Inner"]
    inlined = inline_calls(result)
    assert [node.op_type for node in inlined.graph] == ["Add", "Mul", "Add"]
    assert not inlined.functions
