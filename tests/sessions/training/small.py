"""Small models, as ONNX and as what torch computes from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

import onward

Array = np.ndarray[Any, Any]

SHAPES = {"w1": (8, 16), "b1": (16,), "w2": (16, 4), "b2": (4,)}
CLASSES = 4


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: (rng.normal(size=s) * 0.3).astype(np.float32) for n, s in SHAPES.items()}


def mlp(
    tensors: dict[str, Array] | None = None,
    dtype: str = "float32",
    dropout: float = 0.0,
    batch: int | str = "batch",
) -> ir.Model:
    """x (batch, 8) -> logits (batch, 4)"""
    op = onward.OpBuilder()
    w = {n: op.initializer(n, a.astype(dtype)) for n, a in (tensors or weights()).items()}
    h = op.Tanh(op.Add(op.MatMul(op.input("x", dtype, (batch, 8)), w["w1"]), w["b1"]))
    if dropout:
        h = op.Dropout(h, dropout)
    return op.model(logits=op.Add(op.MatMul(h, w["w2"]), w["b2"]))


def batches(count: int, size: int = 12, seed: int = 1) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size, 8)).astype(np.float32)
    labels = x[:, :, :CLASSES].argmax(2)
    return [{"x": x[i], "labels": labels[i]} for i in range(count)]


def torch_mlp(
    tensors: dict[str, Array] | None = None,
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The parameters and the forward pass."""
    import torch

    found = {n: torch.tensor(a, requires_grad=True) for n, a in (tensors or weights()).items()}

    def forward(x: Any) -> Any:
        h = torch.tanh(torch.as_tensor(x) @ found["w1"] + found["b1"])
        return h @ found["w2"] + found["b2"]

    return found, forward


def next_rates(session: onward.TrainingSession) -> list[float]:
    """The learning rate of each update graph at the next update."""
    return [rate for [rate] in session._progress.rates_ahead(1)]
