"""The gradient of a ReLU becomes one operator of torch; what a model compares itself stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward.gradients.model import gradient
from onward.passes.pipelines import PREPARE, TRAINING
from onward.providers.torch.fused_relu_gradient import fuse_relu_gradients
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.lowering import TorchGraph

X = torch.tensor([[-1.0, 0.0, 2.0], [torch.inf, -torch.inf, -0.0]])
DY = torch.tensor([[1.0, torch.inf, 3.0], [4.0, 5.0, torch.nan]])


def model(kind: str) -> ir.Model:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (2, 3))
    if kind == "relu":
        return gradient(op.model(y=op.Relu(x)), {"y": "dy"}, ["x"])
    dy = op.input("dy", "float32", (1, 3) if kind == "broadcast" else (2, 3))
    y = x if kind == "not a relu" else op.Relu(x)
    is_positive = op.Greater(y, np.float32(1 if kind == "above one" else 0))
    dx = op.Where(is_positive, dy, np.float32(2 if kind == "else two" else 0))
    return op.model(dx=dx, mask=is_positive) if kind == "mask read" else op.model(dx=dx)


@pytest.mark.parametrize(
    ("kind", "fused"),
    [
        ("relu", True),
        ("mask read", True),
        ("broadcast", False),
        ("not a relu", False),
        ("above one", False),
        ("else two", False),
    ],
)
def test_a_relus_gradient_is_one_operator(kind: str, fused: bool) -> None:
    prepared = TRAINING(PREPARE(model(kind)))
    dy = DY[:1] if kind == "broadcast" else DY
    feeds = {"x": X, "dy": dy}
    given = [feeds.get(str(value.name), dy) for value in prepared.graph.inputs]
    provider = TorchProvider("TorchExecutionProvider", torch.device("cpu"))
    expected = provider.lower(prepared.clone())(*given)
    fuse_relu_gradients(prepared)
    operators = [node.op_type for node in prepared.graph]
    assert ("ReluGradient" in operators, "Where" in operators) == (fused, not fused)
    assert ("Greater" in operators) == (not fused or kind == "mask read")
    for found, wanted in zip(provider.lower(prepared)(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_fuses_where_nothing_compiles(compiled: bool) -> None:
    compiler = (lambda function: function) if compiled else None
    cpu = torch.device("cpu")
    provider = TorchProvider("TorchExecutionProvider", cpu, step_compiler=compiler)
    graph = TorchGraph(TRAINING(PREPARE(model("relu"))), provider)
    assert ("relu_gradient" in graph.module.source) == (not compiled)
