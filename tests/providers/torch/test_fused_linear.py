"""A matrix product and its bias become one operator."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward.passes.pipelines import PREPARE, TRAINING
from onward.providers.torch.fused_linear import fuse_linear
from onward.providers.torch.provider import TorchProvider

CPU = torch.device("cpu")


def model(kind: str) -> ir.Model:
    """x w + b, or something similar that stays."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    x = op.input("x", "float32", (2, 3, 4))
    w = rng.normal(size=(2, 4, 5) if kind == "many weights" else (4, 5)).astype(np.float32)
    b = rng.normal(size=(3, 5) if kind == "bias by row" else 5).astype(np.float32)
    product = op.MatMul(x, op.initializer("w", w))
    if kind == "bias first":
        return op.model(y=op.Add(op.initializer("b", b), product))
    y = op.Add(product, op.initializer("b", b))
    return op.model(y=y, z=product) if kind == "product read" else op.model(y=y)


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("plain", ["Linear"]),
        ("bias first", ["Linear"]),
        ("product read", ["MatMul", "Add"]),
        ("bias by row", ["MatMul", "Add"]),
        ("many weights", ["MatMul", "Add"]),
    ],
)
def test_products_with_a_bias_become_linear(kind: str, left: list[str]) -> None:
    prepared = TRAINING(PREPARE(model(kind)))
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    provider = TorchProvider("TorchExecutionProvider", CPU)
    expected = provider.lower(prepared.clone())(x)
    fuse_linear(prepared)
    assert [node.op_type for node in prepared.graph if node.op_type != "Constant"] == left
    for y, wanted in zip(provider.lower(prepared)(x), expected):
        torch.testing.assert_close(y, wanted)
