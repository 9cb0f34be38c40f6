"""Inputs and outputs described as onnxruntime does."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onward.graph.node_args import describe
from onward.graph.signature import NodeArg

FLOAT = ir.TensorType(ir.DataType.FLOAT)
CASES = [
    (FLOAT, ir.Shape(["n", 4]), NodeArg("x", "tensor(float)", ["n", 4])),
    (ir.TensorType(ir.DataType.BFLOAT16), ir.Shape([]), NodeArg("x", "tensor(bfloat16)", [])),
    (ir.TensorType(ir.DataType.DOUBLE), ir.Shape([-1]), NodeArg("x", "tensor(double)", [None])),
    (ir.SequenceType(FLOAT), None, NodeArg("x", "seq(tensor(float))", [], is_ranked=False)),
    (ir.OptionalType(FLOAT), None, NodeArg("x", "optional(tensor(float))", [], is_ranked=False)),
    (None, None, NodeArg("x", "", [], is_ranked=False)),
]


@pytest.mark.parametrize(("kind", "shape", "expected"), CASES)
def test_a_value_is_described(
    kind: ir.TypeProtocol | None, shape: ir.Shape | None, expected: NodeArg
) -> None:
    assert describe(ir.Value(name="x", type=kind, shape=shape)) == expected
