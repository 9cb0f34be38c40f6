"""Training from artifacts with bare onnxruntime sessions, compared with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from onward.losses.classification import CrossEntropy
from onward.losses.combined import Output, Total
from onward.losses.regression import L1, MSE, Huber
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.sgd import SGD
from onward.training import onnxblock
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.nets import (
    MLP,
    Loop,
    convolutional,
    float_info,
    mlp,
    model_of,
    names,
    opened,
    two_outputs,
)


def batch(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "input": rng.normal(size=(8, 4)).astype(np.float32),
        "labels": rng.integers(0, 3, 8),
        "target": rng.normal(size=(8, 3)).astype(np.float32),
    }


class Net(torch.nn.Module):
    """The same as mlp(), from its weights."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        tensors = {t.name: onnx.numpy_helper.to_array(t).copy() for t in model.graph.initializer}
        self.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(torch.relu(self.fc1(x)))
        return out


# -- learning --------------------------------------------------------------------------------------


def test_sgd_on_bare_onnxruntime_equals_torch_after_fifty_steps(tmp_path: Path) -> None:
    model = mlp()
    generate_artifacts(
        model,
        list(MLP),
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    loop, net = Loop(tmp_path), Net(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(50):
        feeds = batch(step % 5)
        losses.append(loop.loss(feeds))
        loop.update(0.1)
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(feeds["input"])), torch.from_numpy(feeds["labels"])
        )
        expected.backward()
        optimizer.step()
        assert losses[-1] == pytest.approx(expected.item(), abs=1e-5)
    assert losses[-1] < losses[4]
    for name, value in net.named_parameters():
        np.testing.assert_allclose(loop.parameters[name], value.detach(), atol=1e-5)


def transformers_adamw(
    p: Any, g: Any, m: Any, v: Any, t: int, *, lr: float, wd: float, eps: float = 1e-6
) -> Any:
    """The peer's kernel, written out."""
    m[...] = 0.9 * m + 0.1 * g
    v[...] = 0.999 * v + 0.001 * g * g
    size = lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    p = p - size * m / (np.sqrt(v) + eps)
    return p - lr * wd * p


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_on_bare_onnxruntime_equals_the_peers_formula(tmp_path: Path, decay: float) -> None:
    model = mlp()
    generate_artifacts(
        model,
        list(MLP),
        loss=LossType.MSELoss,
        optimizer=onnxblock.optim.AdamW(weight_decay=decay),
        artifact_directory=tmp_path,
    )
    loop = Loop(tmp_path)
    mine = {name: value.astype(np.float64) for name, value in loop.parameters.items()}
    m, v = ({name: np.zeros_like(p) for name, p in mine.items()} for _ in range(2))
    first = loop.evaluate(batch(0))
    for step in range(50):
        net = Net(model).double()
        net.load_state_dict({name: torch.from_numpy(p) for name, p in mine.items()})
        feeds = batch(step % 5)
        x, y = (torch.from_numpy(feeds[name]).double() for name in ("input", "target"))
        torch.nn.functional.mse_loss(net(x), y).backward()
        for name, p in net.named_parameters():
            assert p.grad is not None
            mine[name] = transformers_adamw(
                mine[name], p.grad.numpy(), m[name], v[name], step + 1, lr=0.01, wd=decay
            )
        loop.loss(feeds)
        loop.update(0.01)
    for name, value in mine.items():
        np.testing.assert_allclose(loop.parameters[name], value, atol=1e-5)
    assert loop.evaluate(batch(0)) < first


def test_gradients_accumulate_until_reset(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        list(MLP),
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    loop = Loop(tmp_path)
    loop.loss(batch(0))
    once = dict(loop.gradients)
    loop.loss(batch(0), reset=False)
    for name in MLP:
        np.testing.assert_allclose(loop.gradients[name], 2 * once[name], rtol=1e-6)


def test_batch_norm_statistics_match_torch(tmp_path: Path) -> None:
    model = convolutional()
    generate_artifacts(
        model,
        requires_grad=["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    net = torch.nn.Sequential()
    net.add_module("conv", torch.nn.Conv2d(1, 4, 3, bias=False))
    net.add_module("bn", torch.nn.BatchNorm2d(4))
    net.add_module("rest", torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten()))
    net.add_module("fc", torch.nn.Linear(64, 3))
    weights = {t.name: onnx.numpy_helper.to_array(t).copy() for t in model.graph.initializer}
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    net.load_state_dict(tensors, strict=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loop = Loop(tmp_path)
    assert names(loop.training.get_outputs())[-2:] == [
        "bn.running_mean_updated",
        "bn.running_var_updated",
    ]
    rng = np.random.default_rng(0)
    feeds = {
        "image": rng.normal(size=(6, 1, 6, 6)).astype(np.float32),
        "labels": rng.integers(0, 3, 6),
    }
    x, y = torch.from_numpy(feeds["image"]), torch.from_numpy(feeds["labels"])
    for _ in range(10):
        loop.loss(feeds)
        loop.update(0.05)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for name, value in net.state_dict().items():
        if name in loop.parameters:
            np.testing.assert_allclose(loop.parameters[name], value, atol=2e-5)
    net.eval()
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(net(x), y).item()
    assert loop.evaluate(feeds) == pytest.approx(expected, abs=1e-4)


def test_dropout_is_active_only_in_training(tmp_path: Path) -> None:
    generate_artifacts(
        convolutional(dropout=True),
        ["fc.weight"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )
    loop = Loop(tmp_path)
    rng = np.random.default_rng(0)
    feeds = {
        "image": rng.normal(size=(6, 1, 6, 6)).astype(np.float32),
        "labels": rng.integers(0, 3, 6),
    }
    assert loop.evaluate(feeds) == loop.evaluate(feeds)
    assert len({loop.loss(feeds) for _ in range(8)}) > 1


# -- what the peer had not -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (Huber(), lambda x, f: torch.nn.functional.huber_loss(x, torch.from_numpy(f["target"]))),
        (MSE(), lambda x, f: torch.nn.functional.mse_loss(x, torch.from_numpy(f["target"]))),
        (
            CrossEntropy(label_smoothing=0.1, weight=(1.0, 2.0, 3.0)),
            lambda x, f: torch.nn.functional.cross_entropy(
                x,
                torch.from_numpy(f["labels"]),
                weight=torch.tensor([1.0, 2.0, 3.0]),
                label_smoothing=0.1,
            ),
        ),
    ],
)
@pytest.mark.parametrize("optimizer", [Lion(lr=0.01), SGD(lr=0.1, momentum=0.9), LAMB(), AdamW()])
def test_losses_and_optimizers_of_onward_are_accepted(
    tmp_path: Path, loss: Any, reference: Any, optimizer: Any
) -> None:
    model = mlp()
    generate_artifacts(
        model, list(MLP), loss=loss, optimizer=optimizer, artifact_directory=tmp_path
    )
    loop, feeds, net = Loop(tmp_path), batch(), Net(model)
    expected = reference(net(torch.from_numpy(feeds["input"])), feeds)
    expected.backward()
    losses = [loop.loss(feeds)]
    assert names(loop.training.get_outputs())[0] == "loss"
    assert losses[0] == pytest.approx(expected.item(), rel=1e-5)
    for name, value in net.named_parameters():
        np.testing.assert_allclose(loop.gradients[name], value.grad, atol=1e-6)
    for _ in range(10):
        loop.update(optimizer.lr)
        losses.append(loop.loss(feeds))
    assert losses[-1] < losses[0]


def test_terms_of_a_total_are_outputs(tmp_path: Path) -> None:
    parts = {"near": MSE(output="a", target="ta"), "far": (L1(output="b", target="tb"), 0.5)}
    generate_artifacts(
        two_outputs(), loss=Total(parts), optimizer=OptimType.SGD, artifact_directory=tmp_path
    )
    session = opened(tmp_path / "eval_model.onnx")
    assert names(session.get_outputs()) == ["loss", "loss.near", "loss.far"]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 4)).astype(np.float32)}
    feeds |= {name: rng.normal(size=(3, 2)).astype(np.float32) for name in ("ta", "tb")}
    loop = Loop(tmp_path)
    total, near, far = session.run(None, feeds | loop.parameters)
    assert total == pytest.approx(near + 0.5 * far)
    assert loop.loss(feeds) == pytest.approx(total.item())


def test_loss_may_be_an_output_of_the_model(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["cost"], keepdims=1),
    ]
    inputs, outputs = [float_info("x", [2])], [float_info("y", [2]), float_info("cost", [1])]
    model = model_of(nodes, inputs, outputs, {"w": np.ones(2, np.float32)})
    generate_artifacts(
        model, ["w"], loss=Output("cost"), artifact_directory=tmp_path, optimizer=OptimType.SGD
    )
    loop = Loop(tmp_path)
    assert loop.loss({"x": np.array([3, 4], np.float32)}) == 7
    assert loop.gradients["w"].tolist() == [3, 4]


def test_groups_have_separate_learning_rates(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        list(MLP),
        loss=LossType.MSELoss,
        optimizer=SGD(lr=0.1),
        artifact_directory=tmp_path,
        groups=[Group(parameters="*.bias", lr=0.2), Group(parameters="fc1.weight", frozen=True)],
    )
    loop = Loop(tmp_path)
    before = dict(loop.parameters)
    loop.loss(batch())
    loop.update(0.05)
    for name, rate in (("fc1.bias", 0.1), ("fc2.bias", 0.1), ("fc2.weight", 0.05)):
        expected = before[name] - rate * loop.gradients[name]
        np.testing.assert_allclose(loop.parameters[name], expected, rtol=1e-6)
    assert (loop.parameters["fc1.weight"] == before["fc1.weight"]).all()
