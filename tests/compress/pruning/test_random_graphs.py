"""Pruned models equal masked ones: random networks of several kinds of layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compress.pruning.law import Net, check_law

IMAGES = ("conv", "residual", "dense", "split", "grouped", "depthwise", "norm", "gate")
SEQUENCES = ("linear", "residual", "attention", "heads_last", "lstm", "gru", "gate", "concat")


def add_image_layer(op: Net, x: ir.Value, kind: str, size: int) -> ir.Value:
    channels = int(x.shape[1])  # type: ignore[index, arg-type]
    if kind == "residual":
        h = op.Relu(op.Conv(x, op.weight(size, channels, 3, 3), pads=[1] * 4))
        return op.Add(x, op.Conv(h, op.weight(channels, size, 1, 1), op.weight(channels)))
    if kind == "dense":
        h = op.Conv(x, op.weight(size, channels, 1, 1))
        return op.Concat(x, op.Tanh(h), x, axis=1)
    if kind == "split":
        h = op.Conv(x, op.weight(2 * size, channels, 1, 1))
        a, b = op.Split(h, np.array([size, size]), axis=1, outputs=2)
        return op.Concat(b, op.Relu(a), axis=1)
    if kind == "grouped":
        h = op.Conv(x, op.weight(4 * size, channels, 1, 1))
        return op.Conv(h, op.weight(2 * size, 2 * size, 1, 1), group=2)
    if kind == "depthwise":
        return op.Conv(x, op.weight(channels, 1, 3, 3), pads=[1] * 4, group=channels)
    if kind == "norm":
        variance = op.initializer(op.name("v"), np.full(channels, 0.7, np.float32))
        weights = (op.weight(channels) for _ in range(3))
        return op.Sigmoid(op.BatchNormalization(x, *weights, variance))
    if kind == "gate":  # squeeze and excitation
        h = op.Conv(op.GlobalAveragePool(x), op.weight(size, channels, 1, 1))
        return op.Mul(x, op.Sigmoid(op.Conv(op.Relu(h), op.weight(channels, size, 1, 1))))
    return op.Relu(op.Conv(x, op.weight(size, channels, 3, 3), op.weight(size), pads=[1] * 4))


def add_sequence_layer(op: Net, x: ir.Value, kind: str, size: int) -> ir.Value:
    width = int(x.shape[-1])  # type: ignore[index, arg-type]
    if kind == "residual":
        h = op.Gelu(op.Add(op.MatMul(x, op.weight(width, size)), op.weight(size)))
        return op.Add(op.MatMul(h, op.weight(size, width)), x)
    if kind in ("attention", "heads_last"):
        return add_attention(op, x, width, size, heads_first=kind == "attention")
    if kind in ("lstm", "gru"):
        gates = {"lstm": 4, "gru": 3}[kind]
        w, r = op.weight(1, gates * size, width), op.weight(1, gates * size, size)
        h = op.Transpose(x, perm=[1, 0, 2])
        y = getattr(op, kind.upper())(h, w, r, hidden_size=size, outputs=2)[0]
        return op.Transpose(op.Squeeze(y, [1]), perm=[1, 0, 2])
    if kind == "gate":
        h = op.MatMul(x, op.weight(width, 2 * size))
        a, b = op.Slice(h, [0], [size], [2]), op.Slice(h, [size], [2 * size], [2])
        return op.Mul(a, op.Sigmoid(b))
    if kind == "concat":
        return op.Concat(op.MatMul(x, op.weight(width, size)), x, axis=-1)
    return op.Tanh(op.MatMul(x, op.weight(width, size)))


def add_attention(op: Net, x: ir.Value, width: int, size: int, *, heads_first: bool) -> ir.Value:
    shape = [0, 0, 2, size] if heads_first else [0, 0, size, 2]
    perm = [0, 2, 1, 3] if heads_first else [0, 3, 1, 2]
    back = [0, 2, 1, 3] if heads_first else [0, 2, 3, 1]
    q, k, v = (
        op.Transpose(op.Reshape(op.MatMul(x, op.weight(width, 2 * size)), shape), perm=perm)
        for _ in range(3)
    )
    scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
    h = op.MatMul(op.Softmax(op.Mul(scores, 0.5)), v)
    h = op.Reshape(op.Transpose(h, perm=back), [0, 0, 2 * size])
    return op.Add(op.MatMul(h, op.weight(2 * size, width)), x)


@pytest.mark.integration
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(IMAGES), st.integers(2, 5)), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_random_image_networks(layers: list[tuple[str, int]], seed: int) -> None:
    op = Net(seed)
    h = op.Conv(op.input("x", "float32", ("batch", 3, 5, 5)), op.weight(4, 3, 1, 1))
    for kind, size in layers:
        h = add_image_layer(op, h, kind, size)
    flat = op.Flatten(h)
    y = op.Gemm(flat, op.weight(int(flat.shape[1]), 3))  # type: ignore[index, arg-type]
    check_law(op.finish(y), seed, {"batch": 2})


@pytest.mark.integration
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(SEQUENCES), st.integers(2, 6)), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_random_sequence_networks(layers: list[tuple[str, int]], seed: int) -> None:
    op = Net(seed)
    h = op.MatMul(op.input("x", "float32", (2, 4, 5)), op.weight(5, 6))
    for kind, size in layers:
        h = add_sequence_layer(op, h, kind, size)
    y = op.MatMul(h, op.weight(int(h.shape[-1]), 3))  # type: ignore[index, arg-type]
    check_law(op.finish(y), seed)
