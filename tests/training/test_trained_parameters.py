"""The weights that artifacts train by default."""

from __future__ import annotations

import onnx_ir as ir

from onward.training.trained_parameters import trainable_weights, weight_names
from tests.programs.test_select import shared_ones
from tests.training.nets import convolutional
from tests.training.test_artifact_graphs import lossy


def test_weights_before_the_loss_are_trained() -> None:
    model = lossy(convolutional(dropout=True))
    weights = ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"]
    assert trainable_weights(model, "loss", weights) == weights
    assert trainable_weights(model, "normed", weights) == weights[:3]


def test_shared_scale_and_variance_is_a_weight() -> None:
    assert weight_names(ir.from_proto(shared_ones(15))) == ["ones", "zeros"]
