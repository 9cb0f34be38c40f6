"""Provenance reads the metadata of torch's exporter."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import onward
from onward.losses import MSE
from onward.optimizers import SGD
from onward.passes.exporters.provenance import Provenance, sources, warn_of_changes
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.exported_models import PREFIX, add_exporter_metadata, exported

NAMES = ["w", "folded", "buffer", "constant", "zeros", "silent", "one"]


def model() -> ir.Model:
    """y = x * w + ... of 3, all tensors in a row; `one` has one element."""
    op = onward.OpBuilder()
    y = op.input("x", "float32", ("n", 3))
    for i, name in enumerate(NAMES):
        array = np.zeros(3) if name == "zeros" else np.arange(i, i + 3)
        y = op.Add(y, op.initializer(name, array[: 1 if name == "one" else 3].astype("f4")))
    sources = {"folded": ["gone", "val_1"], "constant": ["val_2"], "zeros": ["w", "val_3"]}
    return add_exporter_metadata(op.model(y=y), ["w", "gone", "one"], sources, {"buffer": "BUFFER"})


def test_is_parameter_of_initializers() -> None:
    made = model()
    provenance = Provenance(made)
    found = {name: provenance.is_parameter(made.graph.initializers[name]) for name in NAMES}
    assert found == {
        "w": True,
        "folded": True,
        "buffer": False,
        "constant": False,
        "zeros": False,  # of w, it has only the shape
        "silent": None,
        "one": True,
    }


def test_parameters_and_tensors_without_metadata_are_trained_by_default() -> None:
    session = TrainingSession(model(), MSE(), SGD(lr=0.1))
    assert list(session.parameters) == ["w", "folded", "silent", "one"]


def test_named_tensors_are_trained() -> None:
    session = TrainingSession(model(), MSE(), SGD(lr=0.1), {"trainable": ["buffer", "zeros"]})
    assert list(session.parameters) == ["buffer", "zeros"]


def test_missing_or_invalid_metadata_has_no_provenance() -> None:
    made = model()
    made.graph.metadata_props.clear()
    value = made.graph.initializers["folded"]
    assert Provenance(made).is_parameter(value) is None
    for nonsense in ("[", "3", "f(x)"):
        value.metadata_props[PREFIX["sources"]] = nonsense
        assert sources(value) == []


def test_changed_parameters_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    tensors = {
        name: op.initializer(name, np.arange(3, dtype="f4") + i) for i, name in enumerate("abc")
    }
    y = op.Add(op.Add(op.Mul(x, tensors["a"]), tensors["b"]), tensors["c"])
    made = add_exporter_metadata(op.model(y=y), ["a", "gone", "unused"], {"b": ["a", "val_1"]})
    made.graph[0].metadata_props[PREFIX["call"]] = "%mul = mul(args = (%x, %p_a, %p_gone))"
    with caplog.at_level(logging.WARNING, "onward"):
        TrainingSession(made, MSE(), SGD(lr=0.1))
    assert [record.getMessage() for record in caplog.records] == [
        "torch's exporter changed parameters (missing or merged with others: 'gone'; in several "
        "tensors, each trained separately: 'a'); export with optimize=False"
    ]
    caplog.clear()
    warn_of_changes(made, ["c"])  # the others are not trained
    assert not caplog.records


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNN(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(x)[0]
        return y


class Zero(nn.Sequential):
    """The exporter leaves zeros out that are added."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4))
        nn.init.zeros_(self[0].bias)


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3), nn.Flatten())


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (Recurrent, (2, 5, 3), "separately: 'cell.weight_hh_l0', 'cell.bias_hh_l0')"),
        (Zero, (2, 3), "(missing or merged with others: '0.bias')"),
        (Normed, (2, 2, 3, 3), "(missing or merged with others: '1.weight', '1.bias')"),
    ],
)
def test_changes_of_an_optimised_export_are_logged(
    module: type[nn.Module], shape: tuple[int, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    made = module().eval()
    for options in ({}, {"optimize": False}):
        TrainingSession(exported(made, torch.randn(shape), **options), MSE(), SGD(lr=0.1))
        assert (message in caplog.text) == (not options)
        caplog.clear()


class Front(nn.Module):
    """Buffers, ones and zeros of a norm without parameters, scales of a resize."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1)
        self.norm = nn.InstanceNorm2d(4)
        self.register_buffer("mean", torch.arange(2.0).reshape(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x - self.mean))
        x = nn.functional.interpolate(x, scale_factor=0.5, mode="bilinear")
        return x.flatten(1)


@pytest.mark.parametrize("options", [{}, {"optimize": False}])
def test_buffers_and_constants_of_torch_are_not_trained(options: dict[str, bool]) -> None:
    made = exported(Front(), torch.randn(3, 2, 4, 4), **options)
    session = TrainingSession(made, MSE(), SGD(lr=0.1))
    assert sorted(session.parameters) == ["conv.bias", "conv.weight"]
