"""The optimizer and the steps of a run, from the settings."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.optimizers.adam import AdamW
from onward.optimizers.muon import Muon
from onward.sessions.training.session import TrainingSession
from tests.runner.plan.planned_runs import mlp, plan_of, table, train


def test_muon_leaves_what_is_no_matrix_to_adamw() -> None:
    plan = plan_of(mlp(), table(), target="kind", optimizer="muon", learning_rate=0.02)
    [group] = plan.options.groups
    assert group.optimizer == AdamW(lr=0.02) and plan.optimizer == Muon(lr=0.02)
    session = TrainingSession(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    before = {name: np.array(each) for name, each in session.parameters.items()}
    session.step(next(plan.training.epoch(0)).feeds)
    changed = {name for name, each in session.parameters.items() if (each != before[name]).any()}
    assert {len(each.shape) for each in before.values()} == {1, 2} and changed == {*before}


def test_muon_trains_images() -> None:
    cnn = onward.new_model("cnn", image=(1, 8, 8), channels=(2,), hidden=4, classes=2)
    x = np.random.default_rng(0).normal(size=(16, 1, 8, 8)).astype(np.float32)
    plan = plan_of(cnn, {"x": x, "y": np.arange(16) % 2}, target="y", optimizer="muon")
    assert train(plan)["loss"] > 0


def test_muon_does_not_go_with_rates_of_layers() -> None:
    with pytest.raises(OptionError, match="layer_decay does not go with muon"):
        plan_of(mlp(), table(), target="kind", optimizer="muon", layer_decay=0.5)


def test_batches_that_do_not_fill_a_step_are_refused() -> None:
    settings = {"target": "kind", "epochs": 2, "batch_size": 9}  # 18 rows: 2 batches
    assert plan_of(mlp(), table(), gradient_accumulation_steps=4, **settings).steps == 1
    with pytest.raises(OptionError, match="steps is 5, and the run has 4 batches: they do not"):
        plan_of(mlp(), table(), gradient_accumulation_steps=5, **settings)
