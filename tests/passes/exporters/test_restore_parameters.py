"""Parameters that torch's exporter has merged or copied are trained as in torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.passes.exporters.restore_parameters import (
    find_ties,
    separate_and_tie,
    split_merged_parameters,
)
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.exported_models import (
    PREFIX,
    add_exporter_metadata,
    exported,
    exported_by_torchscript,
)


class Tied(nn.Module):
    """An embedding whose weight is the last layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 7, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.hidden(self.embedding(x))))
        return y


class Fresh(nn.Sequential):
    """Layers whose ones and zeros are equal, one of them transposed by the exporter."""

    def __init__(self) -> None:
        layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
        for layer in layers[1:]:
            nn.init.zeros_(layer.weight)
            nn.init.ones_(layer.bias)  # zeros vanish altogether
        norms = [nn.LayerNorm(4), nn.LayerNorm(4)]
        super().__init__(layers[0], norms[0], layers[1], norms[1], layers[2])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = x + layer(x)
        return x


CASES = {
    "tied": (Tied, torch.tensor([[1, 2, 3], [4, 2, 6]])),
    "fresh": (Fresh, torch.linspace(-1, 1, 12).reshape(3, 4)),
    "fresh, with a batch of sequences": (Fresh, torch.linspace(-1, 1, 24).reshape(2, 3, 4)),
}


def taught(module: nn.Module, x: Tensor, target: Tensor, steps: int) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), target).backward()
        optimizer.step()
    return module(x).detach().numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_default_export_is_trained_as_torch_trains_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    make, x = CASES[name]
    module = make()
    model = exported(module, x)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "onward"):
        session = TrainingSession(model, MSE(), SGD(lr=0.1))
    assert "changed parameters" not in caplog.text
    target = torch.randn(module(x).shape)
    feeds = {"x": x.numpy(), "target": target.numpy()}
    for _ in range(5):
        session.step(feeds)
    y = session.predict({"x": feeds["x"]})["y"]
    np.testing.assert_allclose(y, taught(module, x, target, 5), rtol=1e-5, atol=1e-6)
    session.export(tmp_path / "trained.onnx")
    stock = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_allclose(stock.run(None, {"x": feeds["x"]})[0], y, rtol=1e-5, atol=1e-6)


def test_one_merged_parameter_is_trained_alone(tmp_path: Path) -> None:
    make, x = CASES["fresh"]
    session = TrainingSession(exported(make(), x), MSE(), SGD(lr=0.1), {"trainable": ["1.weight"]})
    session.step({"x": x.numpy(), "target": np.zeros((3, 4), np.float32)})
    session.export(tmp_path / "trained.onnx")
    [y] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_allclose(session.predict({"x": x.numpy()})["y"], y, rtol=1e-6)


def tied(copy: Any, weight: Any) -> ir.Model:
    """y = x weight + copy[0], where `copy` was made from `weight`."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", len(weight)))
    y = op.MatMul(x, op.initializer("weight", np.asarray(weight, np.float32)))
    first = op.Gather(op.initializer("copy", np.asarray(copy, np.float32)), np.int64(0))
    return add_exporter_metadata(op.model(y=op.Add(y, first)), ["weight"], {"copy": ["weight"]})


@pytest.mark.parametrize(
    ("copy", "weight", "expected"),
    [
        ([[1, 3], [2, 4]], [[1, 2], [3, 4]], {"copy": ("weight", True)}),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], {"copy": ("weight", False)}),
        ([[1, 2], [2, 1]], [[1, 2], [2, 1]], {}),  # which of both?
        ([[2, 6], [4, 8]], [[1, 2], [3, 4]], {}),
    ],
)
def test_copies_are_recognised_by_contents(copy: Any, weight: Any, expected: Any) -> None:
    model = tied(copy, weight)
    assert find_ties(model) == expected
    separate_and_tie(model)
    assert ("copy" in model.graph.initializers) == (not expected)


def test_named_copies_stay_separate() -> None:
    model = tied([[1, 3], [2, 4]], [[1, 2], [3, 4]])
    feeds = {"x": np.ones((2, 2), np.float32), "target": np.zeros((2, 2), np.float32)}
    session = TrainingSession(model, MSE(), SGD(lr=0.1), {"trainable": ["weight", "copy"]})
    session.step(feeds)
    weight, copy = session.parameters["weight"], session.parameters["copy"]
    assert copy.shape == (2, 2) and (copy != weight.T).any()


def called(model: ir.Model, *calls: str) -> ir.Model:
    for node, call in zip(model.graph, calls):
        node.metadata_props[PREFIX["call"]] = call
    return model


def merged(*calls: str) -> ir.Model:
    """y = (x + a + b) + a + b, each addition with its call."""
    op = onward.OpBuilder()
    y = op.input("x", "float32", ("n", 2))
    a, b = (op.initializer(name, np.ones(2, np.float32)) for name in "ab")
    for value in (a, b, a, b):
        y = op.Add(y, value)
    return called(add_exporter_metadata(op.model(y=y), ["a", "b", "c", "d"]), *calls)


@pytest.mark.parametrize(
    ("calls", "names"),
    [
        (["%1 = (%p_a)", "%2 = (%p_b)", "%3 = (%p_c)", "%4 = (%p_d)"], ["a", "b", "c", "d"]),
        (["%1 = (%p_a)", "%2 = (%p_b)", "%3 = (%p_c)", "%3 = (%p_c)"], ["a", "b"]),
        (["%1 = (%p_a)", "%2 = (%p_b)", "%3 = (%p_c)", "%4 = (%p_c)"], ["a", "b"]),
        (["%1 = (%p_a, %p_b)", "", "%3 = (%p_c, %p_d)", ""], ["a", "b"]),
        (["%1 = (%p_c)", "%2 = (%p_d)", "%1 = (%p_c)", "%2 = (%p_d)"], ["a", "b"]),
    ],
    ids=["two", "one for two", "two calls disagree", "two for one", "no module"],
)
def test_merged_parameters_are_separated_by_calls(calls: list[str], names: list[str]) -> None:
    model = merged(*calls)
    split_merged_parameters(model)
    assert list(model.graph.initializers) == names


# -- the older exporter ----------------------------------------------------------------------------


class Pair(nn.Module):
    """Two layers whose weights are equal: one parameter, or two."""

    def __init__(self, tied: bool, bias: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=bias), nn.Linear(4, 4, bias=bias)
        if tied:
            self.b.weight, self.b.bias = self.a.weight, self.a.bias
        else:
            self.b.load_state_dict(self.a.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.tanh(self.a(x)))
        return y


class Repeated(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False)] * 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


FLAT, DEEP = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(-1, 1, 24).reshape(2, 3, 4)
OLDER = {
    "fresh": (Fresh, FLAT, ""),
    "fresh, with a batch of sequences": (Fresh, DEEP, ""),
    "shared": (lambda: Pair(True), FLAT, ""),
    "equal": (lambda: Pair(False), FLAT, ""),
    "shared sequences": (lambda: Pair(True), DEEP, ""),
    "equal sequences": (lambda: Pair(False), DEEP, "they are trained separately"),
    "equal, no bias": (lambda: Pair(False, bias=False), DEEP, "they are trained separately"),
    "repeated": (Repeated, DEEP, ""),
    "tied": (Tied, torch.tensor([[1, 2, 3], [4, 2, 6]]), "they are trained as one"),
}


@pytest.mark.parametrize("name", OLDER)
def test_an_export_of_the_older_exporter_is_trained_as_torch_trains_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    make, x, message = OLDER[name]
    module = make()
    model = exported_by_torchscript(module, x)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "onward"):
        session = TrainingSession(model, MSE(), SGD(lr=0.1))
    assert message in caplog.text if message else not caplog.text
    assert len(session.parameters) == len(list(module.parameters()))
    target = torch.randn(module(x).shape)
    feeds = {"x": x.numpy(), "target": target.numpy()}
    for _ in range(20):
        session.step(feeds)
    y = session.predict({"x": feeds["x"]})["y"]
    np.testing.assert_allclose(y, taught(module, x, target, 20), rtol=1e-4, atol=1e-5)
    session.export(tmp_path / "trained.onnx")
    stock = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_allclose(stock.run(None, {"x": feeds["x"]})[0], y, rtol=1e-5, atol=1e-6)


def parameters(model: Any, **options: Any) -> list[str]:
    return sorted(TrainingSession(model, MSE(), SGD(lr=0.1), options).parameters)


def test_tied_option_ties_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    x = OLDER["tied"][1]
    model = exported_by_torchscript(Tied(), x)
    [copy] = [name for name in parameters(model, tied=[]) if name not in parameters(model)]
    assert copy.startswith("onnx::MatMul_")
    caplog.clear()
    groups = [["embedding.weight", copy]]
    assert copy not in parameters(model, tied=groups) and not caplog.text
    assert copy in parameters(model, trainable=["embedding.weight", copy])
    session = TrainingSession(model, MSE(), SGD(lr=0.1), {"tied": [], "frozen": [copy]})
    feeds = {"x": x.numpy(), "target": np.zeros((2, 3, 7), np.float32)}
    session.step(feeds)
    session.export(tmp_path / "trained.onnx")
    stock = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    [y] = stock.run(None, {"x": feeds["x"]})
    np.testing.assert_allclose(y, session.predict({"x": feeds["x"]})["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["weight", "cupy"]], r"tied: 'cupy' is not a weight of the model\ndid you mean 'copy'\?"),
        ([["weight", "copy"]], "tied: 'weight', 'copy' do not hold the same numbers"),
        ([["weight", "weight"]], "tied: 'weight' is named twice"),
        (
            [["weight"]],
            r"TrainingOptions.tied must be a list of groups of names, not \[\['weight'\]\]",
        ),
        (["weight"], r"TrainingOptions.tied must be a list of groups of names, not \['weight'\]"),
    ],
)
def test_groups_that_cannot_be_tied_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parameters(tied([[2, 6], [4, 8]], [[1, 2], [3, 4]]), tied=groups)
