"""BatchNormalization in training, frozen, evaluated and exported; against torch's module."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import onward
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.bn2 = nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.head(torch.relu(self.bn2(self.second(x))).mean((2, 3)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    made = Net()
    for bn in (made.bn, made.bn2):
        bn.running_mean.uniform_(-0.2, 0.2)
        bn.running_var.uniform_(0.5, 2.0)
    return made


def exported(net: Net) -> ir.Model:
    x = torch.zeros(2, 2, 6, 6)
    batch = {"x": {0: torch.export.Dim("batch")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about torch
        program = torch.onnx.export(
            net.eval(), (x,), dynamo=True, optimize=False, verbose=False, dynamic_shapes=batch
        )
    assert program is not None
    return program.model


def data(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.normal(size=(8, 2, 6, 6)).astype(np.float32),
            "labels": rng.integers(0, 3, 8),
        }
        for _ in range(count)
    ]


@pytest.mark.integration
@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_matches_torch_and_exports(net: Net, frozen: bool, tmp_path: Path) -> None:
    model = exported(net)
    names = [n.name for n in model.graph if n.op_type == "BatchNormalization"]
    options = TrainingOptions(
        unbiased_variance=True, frozen_batch_norms=names[:1] if frozen else ()
    )
    session = TrainingSession(model, CrossEntropy(), SGD(lr=0.05), options)
    net.train()
    if frozen:
        net.bn.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for feeds in data(10):
        found = session.step(feeds)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            net(torch.tensor(feeds["x"])), torch.tensor(feeds["labels"])
        )
        loss.backward()
        optimizer.step()
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(
            session.parameters[name], parameter.detach().numpy(), atol=1e-5, err_msg=name
        )
    moved = {n: b.numpy() for n, b in net.named_buffers() if "running" in n}
    for name, statistic in session.statistics.items():
        np.testing.assert_allclose(statistic, moved[name], atol=1e-5, err_msg=name)
    assert len(session.statistics) == (2 if frozen else 4)

    session.export(tmp_path / "net.onnx")
    feeds = data(1)[0]
    clean = onward.load(tmp_path / "net.onnx")
    kinds = {node.op_type for node in clean.graph}
    assert "SoftmaxCrossEntropyLoss" not in kinds and [v.name for v in clean.graph.inputs] == ["x"]
    [logits] = onward.InferenceSession(tmp_path / "net.onnx").run(None, {"x": feeds["x"]})
    np.testing.assert_allclose(logits, session.predict({"x": feeds["x"]})["linear"], atol=1e-5)
    with torch.no_grad():
        wanted = net.eval()(torch.tensor(feeds["x"])).numpy()
    np.testing.assert_allclose(logits, wanted, atol=1e-4)


def test_statistics_do_not_move_with_a_batch_that_is_not_finite(net: Net) -> None:
    session = TrainingSession(exported(net), CrossEntropy(), SGD(lr=0.05))
    session.step(data(1)[0])
    before = {name: tensor.copy() for name, tensor in session.statistics.items()}
    bad = data(2)[1]
    bad["x"][0, 0, 0, 0] = np.inf
    session.step(bad)
    for name, tensor in session.statistics.items():
        np.testing.assert_array_equal(tensor, before[name])
    session.evaluate(data(1)[0])
    for name, tensor in session.statistics.items():
        np.testing.assert_array_equal(tensor, before[name])
