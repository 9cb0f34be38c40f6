"""Models with activations to save: built by hand and by torch's exporters."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

import onward


def transformer(
    batch: int | str = 4, time: int = 16, layers: int = 2, size: int = 32, *, biased: bool = True
) -> ir.Model:
    """Pre-norm attention and GELU layers; logits of (batch * time, 50)."""
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    count = iter(range(10_000))

    def weight(*shape: int, spread: float | None = None) -> Any:
        spread = shape[0] ** -0.5 if spread is None else spread
        array = rng.normal(0, spread, shape) if spread else np.zeros(shape)
        return op.initializer(f"w{next(count)}", array.astype(np.float32))

    def linear(x: Any, rows: int, columns: int) -> Any:
        return op.Add(op.MatMul(x, weight(rows, columns)), weight(columns, spread=0))

    def norm(x: Any) -> Any:
        return op.LayerNormalization(x, op.Add(weight(size, spread=0), np.float32(1)), axis=-1)

    def heads(x: Any) -> Any:
        return op.Transpose(op.Reshape(x, np.array([-1, time, 4, size // 4])), perm=[0, 2, 1, 3])

    tokens = op.input("tokens", "int64", (batch, time))
    x = op.Gather(weight(50, size, spread=1), tokens)
    for _ in range(layers):
        y = norm(x)
        q, k, v = (heads(linear(y, size, size)) for _ in range(3))
        scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
        mixed = op.MatMul(op.Softmax(op.Mul(scores, np.float32(0.35)), axis=-1), v)
        mixed = op.Transpose(mixed, perm=[0, 2, 1, 3])
        x = op.Add(x, linear(op.Reshape(mixed, np.array([-1, time, size])), size, size))
        wide = op.Gelu(linear(norm(x), size, 4 * size))
        x = op.Add(x, op.Dropout(linear(wide, 4 * size, size), np.float32(0.1), True))
    scores = linear(norm(x), size, 50) if biased else op.MatMul(norm(x), weight(size, 50))
    logits = op.Reshape(scores, np.array([-1, 50]))
    return op.model(logits=logits)


def transformer_feeds(batch: int = 4, time: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "tokens": rng.integers(0, 50, (batch, time)),
        "labels": rng.integers(0, 50, batch * time),
    }


def chain(batch: int | str = 64, layers: int = 8, size: int = 64) -> ir.Model:
    """Convolution-like chain without residuals, every value a possible boundary."""
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    x: Any = op.input("x", "float32", (batch, size))
    for i in range(layers):
        w = rng.normal(0, size**-0.5, (size, size)).astype(np.float32)
        x = op.Tanh(op.MatMul(x, op.initializer(f"w{i}", w)))
    return op.model(y=x)
