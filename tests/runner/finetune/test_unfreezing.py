"""Gradual unfreezing in one run: layers stay until their stage, and nothing else is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD, AdamW, Cosine
from onward.runner.config import make_config
from onward.runner.finetune.adapt import adapt_model
from onward.runner.finetune.layer_depths import UnfreezingStage
from onward.runner.finetune.unfreezing import open_stage, stage_at
from tests.runner.finetune.finetune_models import Array, conv_net, random

FEEDS = {"x": random(8, 3, 6, 6), "target": random(8, 2)}
OPTIONS = onward.TrainingOptions(schedule=Cosine(steps=12))


def copied(session: onward.TrainingSession) -> dict[str, Array]:
    return {name: np.array(array) for name, array in session.parameters.items()}


def test_frozen_layers_are_bit_equal_until_their_stage() -> None:
    model = conv_net()
    first = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    adapted = adapt_model(make_config(unfreeze_every=3), model)
    assert [stage.step for stage in adapted.stages] == [0, 3, 6]
    session: Any = None
    for stage in adapted.stages:
        before = copied(session) if session else {}
        session = open_stage(adapted.model, MSE(), AdamW(), OPTIONS, stage, session)
        assert session.steps == stage.step and set(session.parameters) == set(stage.names)
        for name, array in session.parameters.items():  # that it takes over, or that stayed
            np.testing.assert_array_equal(array, before.get(name, first[name]))
        for _ in range(3):
            session.step(FEEDS)
    assert set(session.parameters) == set(first)
    assert all((session.parameters[name] != first[name]).any() for name in first)


def test_a_stage_with_the_same_layers_changes_nothing() -> None:
    model = conv_net()
    stage = UnfreezingStage(0, tuple(model.graph.initializers))
    options = onward.TrainingOptions(schedule=Cosine(steps=6), average=onward.optimizers.EMA())
    one, other = (open_stage(model, MSE(), AdamW(), options, stage) for _ in range(2))
    one.properties["epoch"] = 4
    for session in (one, other):
        session.set_learning_rate(0.02)
        for _ in range(2):
            session.step(FEEDS)
    one = open_stage(model, MSE(), AdamW(), options, stage, one)
    assert one.properties == {"epoch": 4} and one.learning_rate == other.learning_rate
    for _ in range(2):
        assert one.step(FEEDS)["loss"] == other.step(FEEDS)["loss"]
    for name, array in one.averages.items():
        np.testing.assert_array_equal(array, other.averages[name])


def test_layers_that_join_are_not_moved_further_than_the_learning_rate() -> None:
    adapted = adapt_model(make_config(unfreeze_every=300), conv_net())
    optimizer = AdamW(lr=0.001, weight_decay=0.0)
    options = onward.TrainingOptions()
    session = open_stage(adapted.model, MSE(), optimizer, options, adapted.stages[0])
    for _ in range(300):
        session.step(FEEDS)
    session = open_stage(adapted.model, MSE(), optimizer, options, adapted.stages[1], session)
    before = copied(session)
    for _ in range(10):
        session.step(FEEDS)
    moved = np.sqrt(np.mean((session.parameters["fc.weight"] - before["fc.weight"]) ** 2))
    assert 0 < moved < 10 * 0.001  # 3 rates; from moments of zero it would be 24


def test_a_run_is_resumed_in_the_stage_of_its_step(tmp_path: Path) -> None:
    adapted = adapt_model(make_config(unfreeze_every=2), conv_net())
    start, then = adapted.stages[:2]
    session = open_stage(adapted.model, MSE(), AdamW(), OPTIONS, start)
    for _ in range(2):
        session.step(FEEDS)
    session = open_stage(adapted.model, MSE(), AdamW(), OPTIONS, then, session)
    session.step(FEEDS)
    session.save(tmp_path / "checkpoint.safetensors")
    resumed = open_stage(adapted.model, MSE(), AdamW(), OPTIONS, stage_at(adapted.stages, 3))
    resumed.load(tmp_path / "checkpoint.safetensors")
    assert resumed.steps == 3
    assert resumed.step(FEEDS)["loss"] == session.step(FEEDS)["loss"]


def test_layer_rates_hold_in_every_stage() -> None:
    config = make_config(unfreeze_every=1, layer_decay=0.5, optimizer="sgd", learning_rate=0.2)
    adapted = adapt_model(config, conv_net())
    options = onward.TrainingOptions(groups=adapted.groups)
    session: Any = None
    for stage in adapted.stages:
        session = open_stage(adapted.model, MSE(), SGD(lr=0.2), options, stage, session)
        rates = sorted(each.learning_rate for each in session.program.layout.updates)
        assert rates == pytest.approx([0.05, 0.1, 0.2][-len(rates) :])
        session.step(FEEDS)
    assert len(rates) == 3


def test_a_stage_does_not_begin_between_the_batches_of_an_update() -> None:
    adapted = adapt_model(make_config(unfreeze_every=1), conv_net())
    options = onward.TrainingOptions(accumulate=2)
    start, then = adapted.stages[:2]
    session = open_stage(adapted.model, MSE(), SGD(), options, start)
    session.step(FEEDS)
    with pytest.raises(OptionError, match="1 batches that await their update"):
        open_stage(adapted.model, MSE(), SGD(), options, then, session)
