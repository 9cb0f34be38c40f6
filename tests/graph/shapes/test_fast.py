"""Fast inference gives what ONNX gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.graph.shapes.fast import infer_fast

Build = Callable[..., Any]

PLAIN: dict[str, tuple[Build, list[Any]]] = {
    "add, the same": (lambda op, a, b: op.Add(a, b), [("n", 3), ("n", 3)]),
    "mul by a number": (lambda op, a: op.Mul(a, 2.0), [("n", 3)]),
    "sub along the last axis": (lambda op, a, b: op.Sub(a, b), [(2, 3, 4), (4,)]),
    "both are broadcast": (lambda op, a, b: op.Mul(a, b), [(2, 1, 4), (3, 1)]),
    "sum of three": (lambda op, a, b, c: op.Sum(a, b, c), [(2, 3), (1, 3), (3,)]),
    "transpose": (lambda op, a: op.Transpose(a, perm=[2, 0, 1]), [(2, "n", 4)]),
    "transpose without an order": (lambda op, a: op.Transpose(a), [(2, 3, 4)]),
    "gemm": (lambda op, a, b: op.Gemm(a, b, transA=1, transB=1), [(3, 2), (5, 3)]),
    "rows by a matrix": (lambda op, a, b: op.MatMul(a, b), [("n", 3, 4), (4, 5)]),
    "batches": (lambda op, a, b: op.MatMul(a, b), [(2, 1, 3, 4), (6, 4, 5)]),
    "sum": (lambda op, a: op.ReduceSum(a, [0, -1], keepdims=0), [("n", 3, 4)]),
    "mean, kept": (lambda op, a: op.ReduceMean(a, [1], keepdims=1), [("n", 3, 4)]),
    "log of the sum of exp": (lambda op, a: op.ReduceLogSumExp(a, [1], keepdims=1), [("n", 3)]),
    "reshape": (lambda op, a: op.Reshape(a, [2, 6]), [(3, 4)]),
    "reshape, one size open": (lambda op, a: op.Reshape(a, [2, -1]), [(3, 4)]),
    "reshape to a scalar": (lambda op, a: op.Reshape(a, []), [(1, 1)]),
    "flatten": (lambda op, a: op.Flatten(a, axis=2), [(2, 3, 4)]),
    "flatten from the end": (lambda op, a: op.Flatten(a, axis=-1), [(2, 3, 4)]),
    "flatten at the end": (lambda op, a: op.Flatten(a, axis=3), [(2, 3, 4)]),
    "squeeze": (lambda op, a: op.Squeeze(a, [0, -1]), [(1, "n", 1)]),
    "unsqueeze": (lambda op, a: op.Unsqueeze(a, [0, -1]), [("n", 3)]),
}


def shape_of(value: ir.Value) -> list[Any]:
    assert value.shape is not None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def node_of(build: Build, shapes: list[Any], dtype: str = "float32") -> ir.Node:
    op = OpBuilder()
    inputs = [op.input(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    node = build(op, *inputs).producer()
    assert isinstance(node, ir.Node)
    return node


@pytest.mark.parametrize("name", list(PLAIN))
def test_fast_shapes_equal_onnx(name: str) -> None:
    node = node_of(*PLAIN[name])
    (y,) = node.outputs
    y.type = y.shape = None
    assert infer_fast(node)
    ours = shape_of(y)
    assert y.dtype == ir.DataType.FLOAT
    graph = node.graph
    assert graph is not None
    graph.outputs.append(y)
    y.shape = None
    inferred = onnx.shape_inference.infer_shapes(
        ir.to_proto(ir.Model(graph, ir_version=10)), data_prop=True
    )
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    assert ours == [dim.dim_param or dim.dim_value for dim in dims]


LEFT: dict[str, tuple[Build, list[Any]]] = {
    "names that are broadcast": (lambda op, a, b: op.Add(a, b), [("n", 3), ("n", 1)]),
    "a size that has no name": (lambda op, a, b: op.Add(a, b), [(None, 3), (3,)]),
    "a reshape that copies": (lambda op, a: op.Reshape(a, [0, 6]), [(2, 3, 2)]),
    "a reshape of an unknown": (lambda op, a: op.Reshape(a, [-1, 6]), [("n", 3, 2)]),
    "a vector times a matrix": (lambda op, a, b: op.MatMul(a, b), [(3,), (3, 4)]),
    "a sum over everything": (lambda op, a: op.ReduceSum(a), [(3, 4)]),
    "a squeeze of all ones": (lambda op, a: op.Squeeze(a), [(1, 4)]),
    "an operator of its own": (lambda op, a: op.Softmax(a), [(3, 4)]),
}


@pytest.mark.parametrize("name", list(LEFT))
def test_other_cases_are_left_to_onnx(name: str) -> None:
    assert not infer_fast(node_of(*LEFT[name]))


def test_integers_are_left_to_onnx() -> None:
    assert not infer_fast(node_of(lambda op, a: op.Transpose(a), [(3, 4)], "int64"))


@pytest.mark.parametrize(
    "build",
    [
        lambda op, a, b: op.Add(a, b),
        lambda op, a, b: op.MatMul(a, b),
        lambda op, a, b: op.Squeeze(a, [0]),
        lambda op, a, b: op.Unsqueeze(a, [0, 0]),
        lambda op, a, b: op.ReduceSum(a, [5]),
    ],
)
def test_invalid_nodes_are_left_to_onnx(build: Build) -> None:
    with pytest.raises(ValueError):
        build(
            OpBuilder(), *node_of(lambda op, a, b: op.Concat(a, b, axis=0), [(3, 4), (5, 4)]).inputs
        )
