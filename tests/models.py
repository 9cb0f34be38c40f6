"""Small models that several tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from onward.graph.builder import OpBuilder

Array = np.ndarray[Any, Any]


def mlp() -> ir.Model:
    """x (batch, 4) -> y (batch, 2), with dynamic batch."""
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", rng.normal(size=(4, 2)).astype(np.float32))
    return op.model(y=op.Relu(op.Add(op.MatMul(x, w), 0.5)))


def serialized(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString())


def sandwich() -> ir.Model:
    """x ** 3 with a MatMul on either side; onnxruntime has no Pow for such an exponent."""
    op = OpBuilder(opset=28)
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", np.eye(4, dtype=np.float32))
    middle = op.Pow(op.MatMul(x, w), np.uint32(3))
    return op.model(y=op.MatMul(middle, w))


def needs(op_type: str, *, opset: int = 20, domain: str = "") -> bytes:
    """A model of one node of any operator, with one float input and one float output."""
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "the_node", domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return bytes(model.SerializeToString())
