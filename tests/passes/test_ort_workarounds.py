"""Nodes that onnxruntime refuses or computes wrongly run after the workarounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import onward
from onward.providers.ort.provider import serialize
from onward.providers.ort.session import create


def attention(q: Any, mask: Any) -> onward.OpBuilder:
    op = onward.OpBuilder()
    heads = {} if len(q) == 4 else {"q_num_heads": 2, "kv_num_heads": 2}
    q, k = (
        op.input("q", "float32", q),
        op.input("k", "float32", (2, 2, 5, 4) if len(q) == 4 else (2, 5, 8)),
    )
    return op.model(y=op.Attention(q, k, k, op.input("mask", "float32", mask), **heads))


@pytest.mark.parametrize("q", [(2, 2, 3, 4), (2, 3, 8)])
@pytest.mark.parametrize("mask", [(1, 5), (2, 1, 1, 5)])
@pytest.mark.parametrize("open_time", [False, True])
def test_an_attention_mask_may_broadcast_over_the_queries(
    q: Any, mask: Any, open_time: bool
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"q": q, "k": (2, 2, 5, 4) if len(q) == 4 else (2, 5, 8), "mask": mask}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    declared = tuple("time" if open_time and size == 3 else size for size in q)
    (expected,) = onward.InferenceSession(
        attention(declared, mask), providers=["ReferenceExecutionProvider"]
    ).run(None, feeds)
    data, weights = serialize(attention(declared, mask))
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_a_mask_of_unknown_rows_may_broadcast_over_the_queries() -> None:
    """As torch exports nn.MultiheadAttention with a key_padding_mask: a Reshape to these sizes."""
    op = onward.OpBuilder()
    q = op.input("q", "float32", ("batch", 2, "time", 4))
    mask = op.input("mask", "float32", ("batch", "time"))
    sizes = op.Concat(
        op.Shape(mask, end=1), op.input("ones", "int64", (2,)), op.Shape(mask, start=1), axis=0
    )
    model = op.model(y=op.Attention(q, q, q, op.Reshape(mask, sizes)))
    rng = np.random.default_rng(0)
    feeds = {"q": rng.normal(size=(3, 2, 5, 4)), "mask": rng.normal(size=(3, 5))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    feeds["ones"] = np.ones(2, np.int64)
    (expected,) = onward.InferenceSession(model, providers=["ReferenceExecutionProvider"]).run(
        None, feeds
    )
    data, weights = serialize(model)
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_a_pad_of_some_axes_survives_a_transpose() -> None:
    """onnxruntime's transpose optimizer reads the pads as those of all axes."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (1, 8, 4))
    y = op.Transpose(op.Pad(op.Transpose(x, perm=[0, 2, 1]), [2, 0], None, [0]), perm=[2, 0, 1])
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 8, 4)).astype(np.float32)}
    data, weights = serialize(op.model(y=op.MatMul(y, np.ones((4, 2), np.float32))))
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    padded = np.pad(feeds["x"].transpose(0, 2, 1), [(2, 0), (0, 0), (0, 0)])
    expected = padded.transpose(2, 0, 1) @ np.ones((4, 2), np.float32)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5)


def test_softplus_of_doubles_is_written_out() -> None:
    op = onward.OpBuilder()
    model = op.model(y=op.Softplus(op.input("x", "float64", (7,))))
    x = np.array([-np.inf, -1e4, -1.0, 0.0, 1.0, 1e4, np.inf])
    data, weights = serialize(model)
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.logaddexp(x, 0), rtol=1e-15)


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_a_scatter_reduces_numbers_of_float16(operator: str, reduction: str) -> None:
    op = onward.OpBuilder()
    data = op.input("data", "float16", (2, 3))
    updates = op.input("updates", "float16", (4, 3))
    rows = np.array([[1], [0], [1], [1]])
    indices = rows if operator == "ScatterND" else np.repeat(rows, 3, axis=1)
    scatter = getattr(op, operator)
    model = op.model(y=scatter(data, indices, updates, reduction=reduction))
    rng = np.random.default_rng(0)
    feeds = {"data": rng.normal(size=(2, 3)), "updates": rng.normal(size=(4, 3))}
    feeds = {name: array.astype(np.float16) for name, array in feeds.items()}
    expected = feeds["data"].astype(np.float32)
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for row, update in zip(rows[:, 0], feeds["updates"].astype(np.float32)):
        expected[row] = combine.get(reduction, lambda old, new: new)(expected[row], update)
    serialized, weights = serialize(model)
    session = create(serialized, onward.SessionOptions(), [("CPUExecutionProvider", {})], weights)
    (result,) = session.run(None, feeds)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, expected.astype(np.float16))


@pytest.mark.parametrize("product", ["MatMul(t, u)", "MatMul(u, t)"])
def test_a_transposed_matrix_times_a_vector(product: str) -> None:
    """Stock onnxruntime reads the matrix as if it were not transposed."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[3, 4] w, float[n] u) => (float[k] y) {{
            t = Transpose<perm = [1, 0]>(w)
            y = {product}
        }}""")
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 4)).astype(np.float32)
    u = rng.normal(size=3 if "t, u" in product else 4).astype(np.float32)
    expected = w.T @ u if "t, u" in product else u @ w.T
    [y] = onward.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
        None, {"w": w, "u": u}
    )
    np.testing.assert_allclose(y, expected, rtol=1e-5)


FRESH_NORM = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4, 3] x{inputs}) => (float[4, 3] y, float[3] read)
    <float[3] zero = {{0, 0, 0}}, float[3] one = {{1, 1, 1}}{weights}> {{
        y, new_mean, new_var = BatchNormalization <training_mode = 1> (x, one, zero, mean, var)
        read = Add (new_mean, new_var) }}"""
STATISTICS = {
    "weights": ("", ", float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}"),
    "feeds": (", float[3] mean, float[3] var", ""),
}


@pytest.mark.parametrize("kind", list(STATISTICS))
@pytest.mark.parametrize("ours", [False, True])
def test_statistics_of_a_batch_norm_are_not_overwritten(kind: str, ours: bool) -> None:
    """Stock onnxruntime writes new statistics into the old ones, and merges equal weights."""
    inputs, weights = STATISTICS[kind]
    model = onnx.parser.parse_model(FRESH_NORM.format(inputs=inputs, weights=weights))
    given = model.SerializeToString()
    data, outside = serialize(onward.load(model)) if ours else (given, {})
    session = create(data, onward.SessionOptions(), [("CPUExecutionProvider", {})], outside)
    x = np.random.default_rng(0).normal(2, 3, size=(4, 3)).astype(np.float32)
    feeds = {"x": x, "mean": np.zeros(3, np.float32), "var": np.ones(3, np.float32)}
    feeds = {argument.name: feeds[argument.name] for argument in session.get_inputs()}
    y = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    read = 0.1 * x.mean(0) + 0.9 + 0.1 * x.var(0)
    right = []
    for _ in range(2):
        results = session.run(None, feeds)
        right += [np.allclose(a, b, atol=1e-4) for a, b in zip(results, (y, read))]
    right.append(kind == "weights" or not feeds["mean"].any())
    assert all(right) is ours  # if onnxruntime mends it, the workaround can be removed
