"""Fifty steps of distillation give the losses of the same steps in torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import optimizers
from onward.compress import Hidden, distill
from onward.compress.distillation.teacher_losses import Relations
from onward.graph.builder import OpBuilder
from onward.graph.graph_ops import extend

torch = pytest.importorskip("torch")

STEPS, ROWS, T, ALPHA = 50, 16, 4.0, 0.7


def mlp(hidden: int, seed: int) -> ir.Model:
    return onward.new_model("mlp", seed=seed, features=6, hidden=(hidden,), classes=5)


def inner_name(model: ir.Model) -> str:
    return str(next(node for node in model.graph if node.op_type == "Relu").outputs[0].name)


def torch_mlp(model: ir.Model) -> torch.nn.Sequential:
    """The same network in torch, with the same weights."""
    layers = []
    for node in model.graph:
        if node.op_type == "Relu":
            layers.append(torch.nn.ReLU())
        elif node.op_type in ("Gemm", "MatMul"):
            w = torch.tensor(node.inputs[1].const_value.numpy())
            b = torch.tensor(node.inputs[2].const_value.numpy())
            transposed = "transB" in node.attributes and node.attributes["transB"].value
            w = w if transposed else w.T.contiguous()
            layer = torch.nn.Linear(w.shape[1], w.shape[0])
            layer.weight.data, layer.bias.data = w.clone(), b.clone()
            layers.append(layer)
    return torch.nn.Sequential(*layers)


def batches() -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        ({"x": rng.normal(size=(ROWS, 6)).astype(np.float32)}, rng.integers(0, 5, ROWS))
        for _ in range(STEPS)
    ]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (
            optimizers.SGD(lr=0.05, momentum=0.9),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        ),
        (optimizers.AdamW(lr=1e-2), lambda p: torch.optim.AdamW(p, lr=1e-2)),
    ],
    ids=["sgd", "adamw"],
)
def test_kl_cross_entropy_and_hidden_mse_match_torch(own, theirs) -> None:
    teacher, student = mlp(24, 0), mlp(24, 7)
    data = batches()
    hidden = Hidden(inner_name(student), inner_name(teacher), weight=0.3)
    report = distill(
        teacher, student, data, alpha=ALPHA, temperature=T, hidden=[hidden], steps=STEPS,
        optimizer=own, schedule="constant", clip_norm=None,
    )  # fmt: skip
    ours = report.details["losses"]

    big, small = torch_mlp(teacher), torch_mlp(student)
    optimizer = theirs(small.parameters())
    expected = []
    for feeds, labels in data:
        x, y = torch.tensor(feeds["x"]), torch.tensor(labels)
        with torch.no_grad():
            inner_t = big[:2](x)
            t = big[2:](inner_t)
        inner_s = small[:2](x)
        s = small[2:](inner_s)
        kl = torch.nn.functional.kl_div(
            torch.log_softmax(s / T, -1), torch.softmax(t / T, -1), reduction="batchmean"
        )
        loss = (
            ALPHA * T * T * kl
            + (1 - ALPHA) * torch.nn.functional.cross_entropy(s, y)
            + 0.3 * torch.nn.functional.mse_loss(inner_s, inner_t)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert len(ours) == STEPS
    assert ours == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_attention_relations_match_torch() -> None:
    rng = np.random.default_rng(0)
    mine, its = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 5, 12))
    op = OpBuilder()
    x = op.input("x", "float64", ["batch", "time", 8])
    model = op.model(y=op.Identity(x))
    sizes = ("batch", "time", 12)
    loss = Relations(output="y", target="teacher", sizes=sizes, heads=2)
    model.graph.outputs.append(loss.build(extend(model), {"y": model.graph.outputs[0]}))
    found = onward.InferenceSession(model).run(None, {"x": mine, "teacher": its})[1]

    def relations(x: np.ndarray) -> torch.Tensor:
        parts = torch.tensor(x).reshape(2, 5, 2, -1).transpose(1, 2)
        return torch.log_softmax(parts @ parts.transpose(-1, -2) / parts.shape[-1] ** 0.5, -1)

    a, b = relations(mine), relations(its)
    assert found == pytest.approx((b.exp() * (b - a)).sum(-1).mean().item(), rel=1e-6)
