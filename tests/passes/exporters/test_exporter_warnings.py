"""Changes of exporters that training cannot undo are logged with names."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import onward
from onward.losses import MSE
from onward.optimizers import SGD
from onward.passes.exporters.exporter_warnings import (
    folded_batch_norms,
    idle_dropouts,
    shared_by_layers,
)
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.exported_models import exported, exported_by_torchscript

RECIPE = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)).eval()


IMAGE = torch.linspace(-1, 1, 100).reshape(2, 2, 5, 5)


def test_folded_batch_norms_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = exported_by_torchscript(convolutions(), IMAGE)
    with caplog.at_level(logging.WARNING, "onward"):
        TrainingSession(model, MSE(), SGD(lr=0.1))
    assert (
        "BatchNormalization was folded into convolutions when the model was exported ('/0/Conv', "
        "'/3/Conv'): it is not trained; export with torch.onnx.export(..., dynamo=False, "
        "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)"
    ) in caplog.messages


def test_export_for_training_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = convolutions()
    model = exported_by_torchscript(network, IMAGE, **RECIPE)
    with caplog.at_level(logging.WARNING, "onward"):
        session = TrainingSession(model, MSE(), SGD(lr=0.1))
    assert not caplog.messages
    assert sorted(session.parameters) == sorted(name for name, _ in network.named_parameters())


def convolution(names: list[str], producer: str) -> ir.Model:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 2, 4, 4))
    weight = op.initializer(names[0], np.ones((2, 2, 1, 1), np.float32))
    made = op.model(y=op.Conv(x, weight, op.initializer(names[1], np.ones(2, np.float32))))
    made.producer_name = producer
    return made


@pytest.mark.parametrize(
    ("names", "producer", "folded"),
    [
        (["onnx::Conv_7", "onnx::Conv_8"], "pytorch", True),
        (["onnx::Conv_7", "onnx::Conv_8"], "someone", False),
        (["onnx::Conv_7", "0.bias"], "pytorch", False),  # the weight was computed: weight_norm
        (["onnx::Conv_7", "onnx::Conv_12"], "pytorch", False),
    ],
)
def test_a_folded_batch_norm_leaves_a_new_weight_and_bias(
    names: list[str], producer: str, folded: bool
) -> None:
    assert bool(folded_batch_norms(convolution(names, producer), names)) == folded
    assert not folded_batch_norms(convolution(names, producer), [])


def layers(second: str, bias: object) -> ir.Model:
    """y = (x w1 + b) second + b."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 2))
    b = op.initializer("b", np.asarray(bias, np.float32))
    weights = {
        name: op.initializer(name, np.eye(2, dtype=np.float32))
        for name in dict.fromkeys(["w1", second])
    }
    hidden = op.Add(op.MatMul(x, weights["w1"]), b)
    return op.model(y=op.Add(op.MatMul(hidden, weights[second]), b))


@pytest.mark.parametrize(
    ("second", "bias", "found"),
    [("w2", [0, 0], ["b"]), ("w2", [0, 1], []), ("w1", [0, 0], []), ("w2", [[0]], [])],
    ids=["merged", "not uniform", "a layer called twice", "one number"],
)
def test_shared_zeros_are_logged(
    second: str, bias: object, found: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = layers(second, bias)
    assert shared_by_layers(model, ["w1", "w2", "b"]) == found
    with caplog.at_level(logging.WARNING, "onward"):
        TrainingSession(model, MSE(), SGD(lr=0.1))
    message = "layers share tensors that hold one number throughout ('b'): an exporter has merged"
    assert (message in caplog.text) == bool(found)


@pytest.mark.parametrize(("training", "p", "idle"), [(False, 0.5, ["1"]), (True, 0.5, [])])
def test_dropout_exported_in_eval_mode_is_logged(
    training: bool, p: float, idle: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(p), nn.Linear(4, 4)).train(training)
    model = exported(network, torch.ones(2, 4), optimize=False)
    assert idle_dropouts(ir.from_proto(model)) == idle
    with caplog.at_level(logging.WARNING, "onward"):
        TrainingSession(model, MSE(), SGD(lr=0.1))
    message = "Dropout drops nothing ('1'): the model was exported in eval mode, or with p=0; call "
    assert (message in caplog.text) == bool(idle)
