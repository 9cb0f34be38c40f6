"""Depths of layers, learning rates by depth, and the stages of gradual unfreezing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.runner.finetune.layer_depths import (
    UnfreezingStage,
    layers_by_depth,
    layerwise_rates,
    unfreeze_schedule,
)
from tests.runner.finetune.finetune_models import conv_net, random

LAYERS = [["conv.weight", "conv.bias"], ["fc.weight", "fc.bias"], ["out.weight"]]


def test_layers_are_in_the_order_of_the_graph() -> None:
    assert layers_by_depth(conv_net()) == LAYERS
    some = layers_by_depth(conv_net(), ["*.bias", "out.*"], ["conv.*"])
    assert some == [["fc.bias"], ["out.weight"]]


def test_embeddings_norms_and_branches_have_the_depth_of_their_layer() -> None:
    op = onward.OpBuilder()

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, random(*shape))

    h = op.Gather(weight("words", 7, 4), op.input("i", "int64", ("batch", 3)))
    h = op.Add(h, op.Gather(weight("positions", 5, 4), np.arange(3)))
    h = op.LayerNormalization(h, weight("norm.weight", 4), weight("norm.bias", 4))
    q, k = op.MatMul(h, weight("q", 4, 4)), op.MatMul(h, op.Transpose(weight("k", 4, 4)))
    y = op.MatMul(op.Mul(q, k), weight("o", 4, 4))
    assert layers_by_depth(op.model(y=op.Add(h, y))) == [
        ["words", "positions", "norm.weight", "norm.bias"],
        ["q", "k"],
        ["o"],
    ]


def test_rates_fall_from_the_last_layer_to_the_first() -> None:
    groups = layerwise_rates(conv_net(), 0.1, 0.5)
    assert [group.parameters for group in groups] == LAYERS
    assert [group.overrides["lr"] for group in groups] == [0.025, 0.05, 0.1]


def test_a_session_trains_with_the_rates_of_layers() -> None:
    model, feeds = conv_net(), {"x": random(4, 3, 6, 6), "target": random(4, 2)}
    steps = []
    for groups in ((), layerwise_rates(model, 0.1, 0.5)):
        options = onward.TrainingOptions(groups=groups)
        session = onward.TrainingSession(model, MSE(), SGD(lr=0.1), options)
        before = {name: np.array(tensor) for name, tensor in session.parameters.items()}
        session.step(feeds)
        steps.append({name: session.parameters[name] - before[name] for name in before})
    for depth, names in enumerate(LAYERS):
        for name in names:
            expected = steps[0][name] * 0.5 ** (2 - depth)
            np.testing.assert_allclose(steps[1][name], expected, atol=1e-6)


def test_layers_unfreeze_from_the_last_to_the_first() -> None:
    out, fc = ("out.weight",), ("out.weight", "fc.weight", "fc.bias")
    stages = unfreeze_schedule(conv_net(), every=10)
    assert stages == [
        UnfreezingStage(0, out),
        UnfreezingStage(10, fc),
        UnfreezingStage(20, (*fc, "conv.weight", "conv.bias")),
    ]
    named = unfreeze_schedule(conv_net(), [["out.*"], ["fc.*"]], every=5)
    assert named == [UnfreezingStage(0, out), UnfreezingStage(5, fc)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: layers_by_depth(m, ["fc.wieght"]),
            "trainable: 'fc.wieght' matches no weight.*\n.*did you mean 'fc.weight'",
        ),
        (lambda m: layers_by_depth(m, frozen=["*"]), "there is nothing to train"),
        (lambda m: layers_by_depth(m, frozen="*"), "frozen must be a list of names or patterns"),
        (lambda m: layerwise_rates(m, 0.1, 1.5), "decay must be a number from 0 to 1"),
        (lambda m: layerwise_rates(m, 0.1, 0), "decay must be a number above 0"),
        (lambda m: layerwise_rates(m, 0, 0.5), "lr must be a number above 0"),
        (lambda m: unfreeze_schedule(m, every=0), "every must be a whole number, at least 1"),
        (lambda m: unfreeze_schedule(m, "fc.*", every=1), "groups must be a list of lists of"),
        (lambda m: unfreeze_schedule(m, [["head"]], every=1), "groups: 'head' matches no weight"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(conv_net())
