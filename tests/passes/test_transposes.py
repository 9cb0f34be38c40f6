"""Transposes move towards the outputs until they cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.transposes import sink_transposes
from tests.passes.one_graph import Build, built, left_after
from tests.passes.running import run_ort

rng = np.random.default_rng(5)
NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
IMAGE = (2, 5, 6, 4)  # (batch, height, width, channels)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


BETWEEN: dict[str, Build] = {
    "unary": lambda op, x: op.Relu(op.Sigmoid(x)),
    "a bias for channels": lambda op, x: op.Add(x, real(4)),
    "a factor for all": lambda op, x: op.Mul(np.float32(2), x),
    "a map": lambda op, x: op.Sub(x, real(1, 5, 6, 1)),
    "two of them": lambda op, x: op.Add(op.Neg(x), op.Exp(x)),
    "a clip": lambda op, x: op.Clip(x, 0.0, 6.0),
    "a choice": lambda op, x: op.Where(op.Less(x, 0.0), x, op.Neg(x)),
    "softmax": lambda op, x: op.Softmax(x, axis=-1),
    "log softmax": lambda op, x: op.LogSoftmax(x, axis=1),
    "concat": lambda op, x: op.Concat(x, op.Neg(x), axis=3),
    "split": lambda op, x: op.Add(*op.Split(x, axis=-1, num_outputs=2, outputs=2)),
    "pad": lambda op, x: op.Pad(x, [0, 1, 2, 0, 0, 3, 4, 0]),
    "tile": lambda op, x: op.Tile(x, [1, 2, 1, 1]),
    "slice": lambda op, x: op.Slice(x, [1, 0], [4, 100], [1, -1], [2, 1]),
    "mean, kept": lambda op, x: op.ReduceMean(x, [1, 2]),
    "resize": lambda op, x: op.Resize(x, None, np.float32([1, 2, 3, 1]), mode="nearest"),
    "index of the largest": lambda op, x: op.Cast(op.ArgMax(x, axis=3, keepdims=1), to=1),
    "quantised": lambda op, x: op.DequantizeLinear(
        op.QuantizeLinear(x, np.float32(0.1), np.uint8(3)), np.float32(0.1), np.uint8(3)
    ),
    "quantised by channel": lambda op, x: op.DequantizeLinear(
        op.QuantizeLinear(x, np.full(4, 0.1, np.float32), np.zeros(4, np.int8), axis=3),
        np.full(4, 0.1, np.float32),
        np.zeros(4, np.int8),
        axis=-1,
    ),
}


@pytest.mark.parametrize("build", list(BETWEEN.values()), ids=list(BETWEEN))
def test_transposes_around_cancel(build: Build) -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        first = op.Transpose(op.Exp(op.Transpose(x, perm=NCHW)), perm=NHWC)
        return op.Exp(op.Transpose(build(op, first), perm=NCHW))

    left = left_after(built(block, IMAGE), sink_transposes, run=run_ort)
    assert left.count("Transpose") <= 1


def test_transpose_before_a_global_mean_is_removed() -> None:
    def head(op: OpBuilder, x: Any) -> Any:
        y = op.Transpose(op.Exp(op.Transpose(x, perm=NCHW)), perm=NHWC)
        return op.ReduceMean(y, [1, 2], keepdims=0)

    assert left_after(built(head, IMAGE), 99) == ["Exp", "ReduceMean"]


def test_nhwc_network_keeps_one_transpose_at_its_input() -> None:
    """Convolutions as tf2onnx writes them, with a residual and a bias in between."""

    def conv(op: OpBuilder, x: Any) -> Any:
        y = op.Conv(op.Transpose(x, perm=NCHW), real(4, 4, 1, 1))
        return op.Transpose(y, perm=NHWC)

    def network(op: OpBuilder, x: Any) -> Any:
        first = op.Relu(op.Add(conv(op, x), real(4)))
        second = op.Sigmoid(conv(op, first))
        third = op.Mul(op.Add(first, second), op.Sigmoid(first))
        return op.ReduceMean(conv(op, third), [1, 2], keepdims=0)

    left = left_after(built(network, IMAGE), 99)
    assert left.count("Transpose") == 1
    assert left_after(built(network, IMAGE), 2).count("Transpose") == 6


def test_transposes_that_gain_nothing_stay() -> None:
    def apart(op: OpBuilder, a: Any, b: Any) -> Any:
        left, right = op.Transpose(a, perm=[1, 0]), op.Transpose(b, perm=[1, 0])
        return op.Relu(left), op.MatMul(op.Neg(left), right)

    model = built(apart, (3, 4), (4, 3))
    assert left_after(model, sink_transposes) == left_after(model, lambda m: m)


def test_different_permutations_do_not_cancel() -> None:
    def crossed(op: OpBuilder, a: Any) -> Any:
        return op.Add(op.Transpose(a, perm=[1, 0, 2]), op.Transpose(a, perm=[2, 1, 0]))

    assert left_after(built(crossed, (3, 3, 3)), 99) == ["Add", "Transpose", "Transpose"]


def test_the_graph_keeps_its_outputs() -> None:
    def block(op: OpBuilder, x: Any) -> Any:
        y = op.Transpose(op.Exp(op.Transpose(x, perm=NCHW)), perm=NHWC)
        return y, op.Transpose(op.Relu(y), perm=NCHW)

    assert left_after(built(block, IMAGE), 99) == ["Exp", "Relu", "Transpose"]


def test_subgraphs_are_unchanged() -> None:
    """A Transpose outside does not sink into a branch."""

    def branch(name: str, operator: str, outer: ir.Value) -> ir.Graph:
        node = ir.node(operator, [outer], num_outputs=1)
        node.outputs[0].name = name
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return ir.Graph([], node.outputs, nodes=[node], name=name)

    def chosen(op: OpBuilder, x: Any) -> Any:
        y = op.Transpose(op.Exp(op.Transpose(x, perm=NCHW)), perm=NHWC)
        condition = op.Less(op.ReduceSum(x, keepdims=0), 0.0)
        return op.If(
            condition, then_branch=branch("a", "Relu", y), else_branch=branch("b", "Neg", y)
        )

    left = left_after(built(chosen, IMAGE), 99)
    assert left == ["Exp", "If", "Less", "Neg", "ReduceSum", "Relu"]
