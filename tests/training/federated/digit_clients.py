"""A small classifier's artifacts, and clients that each have some of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onward import OpBuilder
from onward.training.artifacts import LossType, OptimType, generate_artifacts

Array = np.ndarray[Any, Any]
Data = dict[str, Array]


def make_artifacts(
    folder: Path, optimizer: OptimType = OptimType.SGD, *, norm: bool = False, hidden: int = 8
) -> Path:
    """x (batch, 4) -> scores (batch, 3)."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 4))
    w1 = op.initializer("fc1.weight", rng.normal(0, 0.5, (4, hidden)).astype(np.float32))
    h = op.MatMul(x, w1)
    if norm:
        ones, zeros = np.ones(hidden, np.float32), np.zeros(hidden, np.float32)
        names = {"scale": ones, "bias": zeros, "mean": zeros, "var": ones}
        h = op.BatchNormalization(h, *(op.initializer(f"norm.{n}", a) for n, a in names.items()))
    w2 = op.initializer("fc2.weight", rng.normal(0, 0.3, (hidden, 3)).astype(np.float32))
    b2 = op.initializer("fc2.bias", np.zeros(3, np.float32))
    generate_artifacts(
        op.model(scores=op.Gemm(op.Relu(h), w2, b2)),
        loss=LossType.CrossEntropyLoss,
        optimizer=optimizer,
        additional_output_names=["scores"],
        artifact_directory=folder,
    )
    return folder


def make_data(rows: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> Data:
    """Points around three corners, labelled by corner."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, rows).astype(np.int64)
    points = rng.normal(0, 0.5, (rows, 4)).astype(np.float32)
    points[np.arange(rows), labels] += 2
    return {"x": points, "labels": labels}
