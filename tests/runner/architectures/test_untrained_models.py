"""Untrained models train: the loss of one batch falls, and every parameter is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from onward.losses import MSE, CrossEntropy
from onward.optimizers import AdamW
from onward.runner.architectures.new_model import count_parameters, new_model
from tests.runner.architectures.small_models import SMALL, make_feeds

FAST = ["mlp", "cnn", "transformer", "gpt2", "lstm", "autoencoder"]
SLOW = ["resnet", "squeezenet", "mobilenet", "unet", "vit", "bert"]  # seconds to compile
NO_DROPOUT = {"resnet", "autoencoder"}  # others have the option: noise would hide the fall


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_loss_falls_in_three_steps(name: str) -> None:
    options = {} if name in NO_DROPOUT else {"dropout": 0.0}
    model = new_model(name, **SMALL[name], **options)
    feeds = make_feeds(model, 4)
    [output] = model.graph.outputs
    shape = [{"batch": 4, "time": 5}.get(str(size), size) for size in output.shape or ()]
    axis = -1 if len(shape) == 3 else 1
    classes = int(shape.pop(axis))
    if name == "autoencoder":
        loss, target = MSE(), {"target": feeds["image"]}
    else:
        labels = np.random.default_rng(1).integers(0, classes, shape)
        loss, target = CrossEntropy(axis=axis), {"labels": labels}
    session = onward.TrainingSession(model, loss, AdamW(lr=0.001))
    values = [float(session.step({**feeds, **target})["loss"]) for _ in range(4)]
    assert np.isfinite(values).all() and values[3] < values[0], values
    assert sum(each.size for each in session.parameters.values()) == count_parameters(model)


def test_every_architecture_is_trained() -> None:
    assert {*FAST, *SLOW} == set(SMALL)


def test_running_statistics_move_and_survive_the_export(tmp_path: Path) -> None:
    model = new_model("unet", image=(1, 4, 4), channels=2, stages=1)
    session = onward.TrainingSession(model, CrossEntropy(), AdamW(lr=0.001))
    feeds = make_feeds(model, 2)
    session.step({**feeds, "labels": np.zeros((2, 4, 4), np.int64)})
    session.export(tmp_path / "unet.onnx")
    tensor = onward.load(tmp_path / "unet.onnx").graph.initializers["bottom.bn1.running_mean"]
    assert tensor.const_value is not None and np.abs(tensor.const_value.numpy()).max() > 0
