"""OpBuilder: nodes, constants and types from formulas."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import onward
from onward.graph.builder import OpBuilder


def test_a_formula_becomes_a_valid_model() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 2))
    w = op.initializer("w", np.array([[1, 2], [3, 4]], np.float32))
    proto = ir.to_proto(op.model(y=op.Relu(op.Sub(op.MatMul(x, w), 5.0))))
    onnx.checker.check_model(proto, full_check=True)
    (y,) = ReferenceEvaluator(proto).run(None, {"x": np.array([[1, 1]], np.float32)})
    assert y.tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_numbers_take_the_type_of_other_operands(dtype: str) -> None:
    op = OpBuilder()
    y = op.Mul(2, op.input("x", dtype, (3,)))
    assert y.dtype == ir.DataType.from_numpy(np.dtype(dtype))


def test_numbers_of_another_type_variable_keep_their_type() -> None:
    op = OpBuilder()
    y = op.Reshape(op.input("x", "float32", (2, 3)), [3, -1])
    assert list(y.shape or ()) == [3, 2]
    assert [v.dtype for v in op.graph.initializers.values()] == [ir.DataType.INT64]


def test_several_outputs_come_as_a_tuple() -> None:
    op = OpBuilder()
    a, b = op.Split(op.input("x", "float32", (4, 2)), num_outputs=2, outputs=2)
    assert list(a.shape) == list(b.shape) == [2, 2]


def test_inputs_can_be_outputs() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (1,))
    y = op.Neg(x)
    model = op.model(a=x, b=y, c=y)
    onnx.checker.check_model(ir.to_proto(model))
    assert [v.name for v in model.graph.outputs] == ["a", "b", "c"]


def test_other_domains_are_imported() -> None:
    op = OpBuilder()
    op.Gelu(op.input("x", "float32", (1,)), domain="com.microsoft")
    assert op.graph.opset_imports["com.microsoft"] == 1


def test_an_operator_that_the_opset_lacks_is_refused() -> None:
    with pytest.raises(AttributeError, match="opset 12 has no operator Trilu"):
        OpBuilder(opset=12).Trilu(np.zeros((2, 2), np.float32))


def test_invalid_shapes_are_refused_at_once() -> None:
    op = OpBuilder()
    with pytest.raises(ValueError, match="MatMul"):
        op.MatMul(op.input("x", "float32", (2, 3)), op.input("y", "float32", (2, 3)))


def test_defaults_of_the_schema_count_when_shapes_are_inferred() -> None:
    op = OpBuilder()
    y = op.STFT(op.input("x", "float32", (1, 64, 1)), np.array(16), None, np.array(16))
    assert y.shape == (1, 4, 9, 2)  # onesided


def test_inputs_can_be_strings() -> None:
    op = OpBuilder()
    assert op.Identity(op.input("text", "string", (1,))).dtype == ir.DataType.STRING


def test_constants_can_be_strings() -> None:
    op = OpBuilder()
    y = op.Gather(np.array(["cat", "dög"]), op.input("place", "int64", ("n",)))
    model = op.model(y=op.Concat(y, op.initializer("more", np.array([b"cow"])), axis=0))
    found = onward.InferenceSession(model).run(None, {"place": np.array([1, 0])})
    assert found[0].tolist() == ["dög", "cat", "cow"]
