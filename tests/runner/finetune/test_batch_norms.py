"""BatchNormalization layers that keep their statistics while the model trains."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.runner.finetune.batch_norms import batch_norm_names
from tests.runner.finetune.finetune_models import conv_net, random

PARTS = ("weight", "bias", "running_mean", "running_var")


def two_norms() -> ir.Model:
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", 3))
    for layer in ("encoder", "decoder"):
        h = op.MatMul(h, op.initializer(f"{layer}.fc", random(3, 3)))
        tensors = [op.initializer(f"{layer}.bn.{part}", np.ones(3, np.float32)) for part in PARTS]
        h = op.BatchNormalization(h, *tensors)
        h.name = layer
    return op.model(y=h)


def test_all_layers_or_those_that_match() -> None:
    assert batch_norm_names(two_norms()) == ["encoder", "y"]
    assert batch_norm_names(two_norms(), ["decoder.*"]) == ["y"]
    assert batch_norm_names(two_norms(), ["encoder"]) == ["encoder"]
    assert batch_norm_names(conv_net()) == []


def test_the_statistics_of_frozen_layers_stay() -> None:
    frozen = batch_norm_names(two_norms(), ["encoder.*"])
    options = onward.TrainingOptions(frozen_batch_norms=frozen)
    session = onward.TrainingSession(two_norms(), MSE(), SGD(lr=0.1), options)
    session.step({"x": random(4, 3), "target": random(4, 3, seed=1)})
    assert sorted(session.statistics) == ["decoder.bn.running_mean", "decoder.bn.running_var"]
    options = onward.TrainingOptions(frozen_batch_norms=batch_norm_names(two_norms()))
    assert not onward.TrainingSession(two_norms(), MSE(), SGD(lr=0.1), options).statistics


def test_a_pattern_without_a_layer_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'encodr' matches no BatchNorm.*\n.*mean 'encoder'"):
        batch_norm_names(two_norms(), ["encodr"])
    with pytest.raises(OptionError, match="matches no BatchNormalization of the model"):
        batch_norm_names(conv_net(), ["bn.*"])
