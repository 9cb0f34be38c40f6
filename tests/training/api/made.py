"""Small artifacts that the tests of the device side share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import LossType, OptimType, generate_artifacts

Array = np.ndarray[Any, Any]
NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def classifier() -> ir.Model:
    """input (batch, 4) -> output (batch, 3): two layers."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 4))
    shapes = {"fc1.weight": (8, 4), "fc1.bias": (8,), "fc2.weight": (3, 8), "fc2.bias": (3,)}
    w1, b1, w2, b2 = (
        op.initializer(name, rng.normal(size=shape).astype(np.float32))
        for name, shape in shapes.items()
    )
    hidden = op.Relu(op.Gemm(x, w1, b1, transB=1))
    return op.model(output=op.Gemm(hidden, w2, b2, transB=1))


def normalized() -> ir.Model:
    """input (batch, 2, 3) -> output (batch, 2, 3): BatchNormalization and nothing else."""
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 2, 3))
    values = {"scale": 1.0, "shift": 0.0, "mean": 0.0, "var": 1.0}
    parts = [op.initializer(n, np.full(2, v, np.float32)) for n, v in values.items()]
    return op.model(output=op.BatchNormalization(x, *parts, momentum=0.9))


@dataclass(frozen=True)
class Folder:
    """The files of one set of artifacts."""

    path: Path

    @property
    def training(self) -> Path:
        return self.path / "training_model.onnx"

    @property
    def evaluation(self) -> Path:
        return self.path / "eval_model.onnx"

    @property
    def optimizer(self) -> Path:
        return self.path / "optimizer_model.onnx"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def nominal(self) -> Path:
        return self.path / "nominal_checkpoint"

    def open(self, checkpoint: Path | None = None) -> tuple[CheckpointState, Module, Optimizer]:
        state = CheckpointState.load_checkpoint(checkpoint or self.checkpoint)
        module = Module(self.training, state, self.evaluation)
        return state, module, Optimizer(self.optimizer, module)


def make(path: Path, model: ir.Model | None = None, **settings: Any) -> Folder:
    """Artifacts of a model: by default with cross entropy and AdamW."""
    chosen: dict[str, Any] = {
        "loss": LossType.CrossEntropyLoss,
        "optimizer": OptimType.AdamW,
        "nominal_checkpoint": True,
        **settings,
    }
    generate_artifacts(model or classifier(), artifact_directory=path, **chosen)
    return Folder(path)


def batch(size: int = 16, seed: int = 0) -> tuple[Array, Array]:
    """Points, and which of their first three coordinates is the largest."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 4)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1).astype(np.int64)
