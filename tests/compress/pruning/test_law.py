"""Pruned models equal masked ones: one small graph for each rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.pruning.units import UnitGroup, find_groups, prepare
from tests.compress.pruning.law import Net, check_law

Case = tuple[Callable[[Net], list[ir.Value]], list[tuple[str, int]]]  # the kinds and counts found


def mlp(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 6))
    h = op.Relu(op.Gemm(x, op.weight(6, 16), op.weight(16)))
    h = op.Sigmoid(op.Add(op.MatMul(h, op.weight(16, 12)), op.weight(12)))
    return [op.Gemm(h, op.weight(3, 12), transB=1)]


def residual(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 6, 6))
    a = op.Conv(x, op.weight(8, 3, 3, 3), pads=[1] * 4)
    b = op.Relu(op.Conv(a, op.weight(4, 8, 1, 1), op.weight(4)))
    b = op.Conv(b, op.weight(8, 4, 3, 3), pads=[1] * 4)
    y = op.GlobalAveragePool(op.Relu(op.Add(a, b)))
    return [op.Gemm(op.Flatten(y), op.weight(8, 5))]


def batch_norm(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 6, 6))
    h = op.Conv(x, op.weight(8, 3, 3, 3))
    variance = op.initializer("variance", np.linspace(0.5, 2, 8, dtype=np.float32))
    h = op.BatchNormalization(h, op.weight(8), op.weight(8), op.weight(8), variance)
    h = op.PRelu(h, op.weight(8, 1, 1))
    return [op.Conv(op.MaxPool(h, kernel_shape=[2, 2]), op.weight(4, 8, 2, 2))]


def depthwise(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 6, 6))
    h = op.Clip(op.Conv(x, op.weight(8, 3, 1, 1), op.weight(8)), 0.0, 6.0)
    h = op.Conv(h, op.weight(16, 1, 3, 3), op.weight(16), group=8)
    return [op.Conv(h, op.weight(4, 16, 1, 1))]


def many_groups(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 5, 5))
    h = op.Conv(op.Conv(x, op.weight(32, 3, 1, 1)), op.weight(16, 4, 3, 3), group=8)
    return [op.Conv(h, op.weight(4, 16, 1, 1))]


def few_groups(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 5, 5))
    h = op.Conv(op.Conv(x, op.weight(12, 3, 1, 1)), op.weight(8, 6, 3, 3), group=2)
    return [op.Conv(h, op.weight(4, 8, 1, 1))]


def transposed(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (1, 3, 5, 5))
    h = op.ConvTranspose(op.Conv(x, op.weight(8, 3, 1, 1)), op.weight(8, 6, 2, 2), op.weight(6))
    h = op.ConvTranspose(h, op.weight(6, 2, 2, 2), group=2)
    return [op.Conv(h, op.weight(3, 4, 1, 1))]


def concat_and_split(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 4, 4))
    a, b = op.Conv(x, op.weight(8, 3, 1, 1)), op.Conv(x, op.weight(6, 3, 1, 1))
    h = op.Conv(op.Concat(a, b, axis=1), op.weight(12, 14, 1, 1))
    left, right = op.Split(h, axis=1, num_outputs=2, outputs=2)
    return [op.Conv(op.Mul(left, op.Sigmoid(right)), op.weight(4, 6, 1, 1))]


def slices(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 5))
    h = op.MatMul(x, op.weight(5, 20))
    first, last = op.Slice(h, [0], [8], [1]), op.Slice(h, [8], [2**31], [-1])
    return [op.Add(op.MatMul(first, op.weight(8, 3)), op.MatMul(last, op.weight(12, 3)))]


def shuffle(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (1, 3, 4, 4))
    h = op.Gather(op.Conv(x, op.weight(8, 3, 1, 1)), np.array([3, 1, 0, 2, 7, 6, 5, 4]), axis=1)
    return [op.Conv(op.Tanh(h), op.weight(4, 8, 1, 1))]


def flattened(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 3, 6, 6))
    h = op.Reshape(op.Conv(x, op.weight(8, 3, 3, 3)), [0, -1])
    return [op.MatMul(h, op.weight(8 * 16, 3))]


def attention(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", "time", 16))
    shape = op.Concat(op.Shape(x, start=0, end=2), np.array([4, 6]), axis=0)
    q, k, v = (op.Reshape(op.MatMul(x, op.weight(16, 24)), shape) for _ in range(3))
    q, v = (op.Transpose(each, perm=[0, 2, 1, 3]) for each in (q, v))
    scores = op.Softmax(op.MatMul(q, op.Transpose(k, perm=[0, 2, 3, 1])), axis=-1)
    h = op.Transpose(op.MatMul(scores, v), perm=[0, 2, 1, 3])
    h = op.MatMul(op.Reshape(h, [0, 0, 24]), op.weight(24, 16))
    h = op.LayerNormalization(op.Add(x, h), op.weight(16), op.weight(16))
    return [op.Add(h, op.MatMul(op.Gelu(op.MatMul(h, op.weight(16, 32))), op.weight(32, 16)))]


def fused_attention(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 5, 16))
    q, k, v = (op.MatMul(x, op.weight(16, size)) for size in (32, 16, 16))
    h = op.Attention(q, k, v, q_num_heads=8, kv_num_heads=4)
    return [op.MatMul(h, op.weight(32, 16))]


def joint_attention(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 5, 16))
    h = op.Reshape(op.MatMul(x, op.weight(16, 72)), [0, 5, 3, 4, 6])
    h = op.Transpose(h, perm=[2, 0, 3, 1, 4])
    q, k, v = (op.Gather(h, np.array(part), axis=0) for part in range(3))
    scores = op.Softmax(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])))
    h = op.Transpose(op.MatMul(scores, v), perm=[0, 2, 1, 3])
    return [op.MatMul(op.Reshape(h, [0, 5, 24]), op.weight(24, 16))]


def lstm(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (5, 2, 6))
    w, r, b = op.weight(2, 32, 6), op.weight(2, 32, 8), op.weight(2, 64)
    y = op.LSTM(x, w, r, b, hidden_size=8, direction="bidirectional", outputs=3)[0]
    y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [5, 2, 16])
    y = op.GRU(y, op.weight(1, 30, 16), op.weight(1, 30, 10), hidden_size=10, outputs=2)[0]
    return [op.MatMul(op.Squeeze(y, [1]), op.weight(10, 3))]


def group_norm(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 3, 4, 4))
    h = op.Conv(x, op.weight(16, 3, 1, 1))
    h = op.GroupNormalization(h, op.weight(16), op.weight(16), num_groups=8)
    h = op.Conv(h, op.weight(8, 16, 1, 1))
    return [op.Conv(op.InstanceNormalization(h, op.weight(8), op.weight(8)), op.weight(4, 8, 1, 1))]


def decomposed_group_norm(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 3, "height", "width"))
    h = op.Conv(x, op.weight(16, 3, 1, 1))
    ones = np.ones(4, np.float32)
    flat = op.InstanceNormalization(op.Reshape(h, [0, 4, -1]), ones, np.zeros(4, np.float32))
    h = op.Mul(op.Reshape(flat, op.Shape(h)), op.weight(16, 1, 1))
    return [op.Conv(h, op.weight(4, 16, 1, 1))]


def upsampled(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (1, 3, 4, 4))
    h = op.Conv(x, op.weight(8, 3, 1, 1))
    h = op.Resize(h, None, None, np.array([1, 8, 8, 8]), mode="nearest")
    h = op.Pad(h, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    h = op.DepthToSpace(op.Conv(h, op.weight(32, 8, 1, 1)), blocksize=2)
    return [op.Conv(op.Mul(h, op.ReduceMean(h, [2, 3])), op.weight(2, 8, 1, 1))]


def quantized(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", ("batch", 6))
    h = op.DequantizeLinear(op.QuantizeLinear(op.MatMul(x, op.weight(6, 16)), 0.02), 0.02)
    return [op.MatMul(h, op.weight(16, 3))]


def einsum(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 5, 6))
    h = op.Einsum(x, op.weight(6, 4, 8), equation="bti,ihd->bthd")
    return [op.Einsum(h, op.weight(4, 8, 6), equation="bthd,hdo->bto")]


def einsum_of_two_data(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 5, 6))
    a, b = (op.Sigmoid(op.MatMul(x, op.weight(6, 8))) for _ in range(2))
    scores = op.Einsum(a, b, op.weight(5, 3), equation="bid,bjd,jk->bik")
    return [op.Einsum(a, b, equation="bid,bjd->bij"), scores]


def gemm_of_two_data(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 6))
    a, b = (op.Sigmoid(op.Gemm(x, op.weight(6, 8))) for _ in range(2))
    return [op.Gemm(a, b, transB=1), op.Gemm(op.Transpose(a), op.Transpose(b), transA=1)]


def convolution_with_data(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (1, 4, 5, 5))
    h = op.Sigmoid(op.Conv(x, op.weight(8, 4, 1, 1)))
    w = op.Sigmoid(op.Conv(op.GlobalAveragePool(x), op.weight(8, 4, 1, 1)))
    return [op.Conv(h, w)]


def divided_by_a_weight(op: Net) -> list[ir.Value]:
    x = op.input("x", "float32", (2, 6))
    return [op.MatMul(op.Div(op.MatMul(x, op.weight(6, 8)), op.weight(8)), op.weight(8, 3))]


CASES: list[Case] = [
    (mlp, [("units", 16), ("units", 12)]),
    (residual, [("channels", 8), ("channels", 4)]),
    (batch_norm, [("channels", 8)]),
    (depthwise, [("channels", 8)]),
    (many_groups, [("channels", 8)]),
    (few_groups, [("channels", 6), ("channels", 4)]),
    (transposed, [("channels", 8), ("channels", 3), ("channels", 2)]),
    (concat_and_split, [("channels", 8), ("channels", 6), ("channels", 6)]),
    (slices, [("units", 8), ("units", 12)]),
    (shuffle, [("channels", 8)]),
    (flattened, [("channels", 8)]),
    (attention, [("heads", 4), ("units", 32)]),
    (fused_attention, [("heads", 4)]),
    (joint_attention, [("heads", 4)]),
    (lstm, [("recurrent", 8), ("recurrent", 10)]),
    (group_norm, [("channels", 8), ("channels", 8)]),
    (decomposed_group_norm, [("channels", 4)]),
    (upsampled, [("channels", 8), ("channels", 8)]),
    (quantized, [("units", 16)]),
    (einsum, [("units", 4), ("units", 8)]),
    (einsum_of_two_data, [("units", 8)]),
    (gemm_of_two_data, [("units", 8)]),
    (convolution_with_data, [("channels", 8)]),
    (divided_by_a_weight, [("units", 8)]),
]


@pytest.mark.parametrize(("build", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_pruned_model_equals_masked_model(
    build: Callable[[Net], list[ir.Value]], expected: list[tuple[str, int]]
) -> None:
    op = Net(opset=23 if build is fused_attention else 21)
    model = op.finish(*build(op))
    groups = check_law(model, sizes={"batch": 2, "time": 5, "height": 4, "width": 5})
    assert sorted((group.kind, group.count) for group in groups) == sorted(expected)


def found(*outputs: ir.Value, op: Net) -> list[UnitGroup]:
    return find_groups(prepare(op.finish(*outputs)))


def test_softmax_and_layer_norm_pin_what_they_normalize() -> None:
    op = Net()
    x = op.input("x", "float32", (2, 6))
    h = op.LayerNormalization(op.MatMul(x, op.weight(6, 8)), op.weight(8), op.weight(8))
    h = op.Softmax(op.MatMul(h, op.weight(8, 12)))
    assert found(op.MatMul(h, op.weight(12, 3)), op=op) == []


def test_einsum_pins_the_letter_of_a_trace() -> None:
    op = Net()
    x = op.input("x", "float32", (2, 6))
    a, b = (op.Sigmoid(op.Gemm(x, op.weight(6, 8))) for _ in range(2))
    outer = op.Einsum(a, b, equation="bi,bj->bij")
    assert found(op.Einsum(outer, equation="bii->b"), op=op) == []


def test_unknown_operator_pins_its_axes() -> None:
    op = Net()
    x = op.input("x", "float32", (2, 6))
    h = op.TopK(op.MatMul(x, op.weight(6, 8)), np.array([8]), outputs=2)[0]
    assert found(op.MatMul(h, op.weight(8, 3)), op=op) == []


def test_shape_that_is_data_stays_that_of_the_original() -> None:
    op = Net()
    x = op.input("x", "float32", ("batch", 6))
    h = op.MatMul(x, op.weight(6, 8))
    width = op.Cast(op.Shape(op.Relu(h)), to=1)  # the batch is dynamic: it is not folded
    y = op.MatMul(op.Div(h, op.Slice(width, [1], [2])), op.weight(8, 3))
    assert [group.count for group in check_law(op.finish(y), sizes={"batch": 2})] == [8]


def test_shared_weights_are_cut_once() -> None:
    op = Net()
    x, w, v = op.input("x", "float32", (2, 6)), op.weight(6, 8), op.weight(8, 6)
    h = op.MatMul(op.Relu(op.MatMul(x, w)), v)
    y = op.MatMul(op.MatMul(op.Tanh(op.MatMul(h, w)), v), op.weight(6, 2))
    groups = check_law(op.finish(y))
    assert [group.count for group in groups] == [8]


def test_weights_in_branches_are_cut() -> None:
    op = Net()
    x, c = op.input("x", "float32", (2, 6)), op.input("c", "bool", ())
    branches = []
    for size in (8, 12):
        body = Net(size)
        body_graph = body.graph
        h = body.MatMul(body.Relu(body.MatMul(x, body.weight(6, size))), body.weight(size, 3))
        body_graph.outputs.append(h)
        branches.append(body_graph)
    y = op.If(c, then_branch=branches[0], else_branch=branches[1])
    model = op.finish(op.Identity(y))
    groups = check_law(model)
    assert sorted(group.count for group in groups) == [8, 12]
