"""A linear layer with its cross entropy and their gradients become one operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import losses, optimizers
from onward.programs.build import build_program
from onward.providers.torch import fused_cross_entropy
from onward.providers.torch.kernels import linear_cross_entropy
from onward.providers.torch.kernels.linear_cross_entropy import linear_cross_entropy as fused
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.lowering import lower_program

CPU = torch.device("cpu")
SIZE, CLASSES = 8, 13


def model(kind: str) -> ir.Model:
    """A linear layer as exporters write it: rows of three axes, or a Gemm."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    batch = (2, 3) if "cube" in kind else (6,)
    x = op.input("x", "float32", (*batch, SIZE))
    v = op.initializer("v", rng.normal(size=(SIZE, SIZE)).astype(np.float32))
    shape = (SIZE, CLASSES) if "turned" in kind else (CLASSES, SIZE)
    w = op.initializer("w", rng.normal(size=shape).astype(np.float32))
    hidden = op.Tanh(op.MatMul(x, v))
    if "gemm" in kind:
        b = [op.initializer("b", rng.normal(size=CLASSES).astype(np.float32))] * ("bias" in kind)
        y = op.Gemm(hidden, w, *b, transB=int("turned" not in kind))
    else:
        y = op.MatMul(hidden, w if "turned" in kind else op.Transpose(w, perm=[1, 0]))
    return op.model(y=op.Reshape(y, [-1, CLASSES]))


def lowered(kind: str, most_classes: int, **options: Any) -> tuple[ir.Model, list[str]]:
    """The train graph as torch runs it, and the gradients' names."""
    loss = losses.CrossEntropy(**options)
    program = build_program(model(kind), loss, optimizers.SGD(lr=1.0), {"outputs": []})
    graphs = lower_program(program, TorchProvider("TorchExecutionProvider", CPU))
    assert graphs is not None
    train = graphs.train.model.clone()
    fused_cross_entropy.fuse_cross_entropy(train, most_classes)
    return train, list(graphs.layout.gradients.values())


KINDS = ["cube", "cube turned", "gemm", "gemm turned", "gemm bias", "gemm turned bias"]


@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"reduction": "sum"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_separate_operators(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", 4 * CLASSES * 4)  # four rows at a time
    results = []
    for most in (0, 1 << 40):
        train, names = lowered(kind, most, **options)
        operators = [node.op_type for node in train.graph]
        assert ("LinearCrossEntropy" in operators) is (most == 0)
        assert ("SoftmaxCrossEntropyLoss" in operators) is (most > 0)
        results.append(run(train, ["loss", *names], kind))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def run(train: ir.Model, names: list[str], kind: str) -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    fixed = {"labels": rng.integers(CLASSES, size=6)}
    feeds = []
    for value in train.graph.inputs:
        shape = [int(size) for size in value.shape or () if isinstance(size, int)]
        made = fixed.get(str(value.name), rng.normal(size=shape).astype(np.float32))
        feeds.append(torch.from_numpy(np.asarray(made)))
    outputs = [str(value.name) for value in train.graph.outputs]
    module = TorchProvider("TorchExecutionProvider", CPU).lower(train)
    made = dict(zip(outputs, module(*feeds)))
    return [made[name] for name in names]


def test_scores_that_are_an_output_stay() -> None:
    loss = losses.CrossEntropy()
    program = build_program(model("gemm"), loss, optimizers.SGD(lr=1.0))
    train = program.train.clone()
    fused_cross_entropy.fuse_cross_entropy(train, 0)
    assert "SoftmaxCrossEntropyLoss" in [node.op_type for node in train.graph]


def test_a_label_out_of_range_makes_the_loss_nan() -> None:
    x, w = torch.randn(3, SIZE), torch.randn(CLASSES, SIZE)
    labels = torch.tensor([0, CLASSES, -1])
    loss, *_ = fused(x, w, None, labels, torch.ones(()), reduction="mean", transposed=0)
    assert loss.isnan()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("ignored", [None, 5])
def test_triton_kernel_equals_the_reference(dtype: torch.dtype, ignored: int | None) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(300, 64, dtype=dtype), torch.randn(20011, 64, dtype=dtype) * 0.1
    b, labels = torch.randn(20011, dtype=dtype), torch.randint(20011, (300,))
    labels[::3] = 5
    given = [x, w, b, labels, torch.tensor(2.0)]
    options: Any = {"ignore_index": ignored, "reduction": "mean", "transposed": 0}
    wanted = fused(
        *(each.double() if each.is_floating_point() else each for each in given), **options
    )
    found = fused(*(each.cuda() for each in given), **options)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for one, other in zip(found, wanted):
        error = (one.cpu().double() - other.double()).norm() / other.double().norm()
        assert error < tolerance
