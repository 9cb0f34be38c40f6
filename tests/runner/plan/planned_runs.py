"""Data and plans that the tests of planning share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from onward.runner.architectures.new_model import new_model
from onward.runner.config import make_config
from onward.runner.plan.make_plan import make_plan
from onward.runner.plan.preprocessing import store
from onward.runner.plan.training_plan import TrainingPlan
from onward.sessions.training.session import TrainingSession

Array = np.ndarray[Any, Any]
KINDS = ("bird", "cat", "dog")


def plan_of(model: Any, data: Any, validation: Any = None, **settings: Any) -> TrainingPlan:
    config = make_config({"batch_size": 4, "data_threads": 0}, settings)
    return make_plan(config, model, data, validation)


def mlp(features: int = 4, classes: int = 3) -> ir.Model:
    return new_model("mlp", features=features, hidden=(5,), classes=classes)


def table(rows: int = 20) -> dict[str, Any]:
    """Four columns of numbers, and one of three kinds."""
    random = np.random.default_rng(0)
    numbers = {name: random.normal(size=rows) for name in "abcd"}
    return {**numbers, "kind": [KINDS[row % 3] for row in range(rows)]}


def images(rows: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 256, (rows, *shape), dtype=np.uint8)


def train(plan: TrainingPlan, steps: int = 2) -> dict[str, float]:
    """Train some steps, and evaluate: the loss and the metrics, all finite."""
    session = TrainingSession(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    for batch, _ in zip(plan.training.epoch(0), range(steps)):
        found = {"loss": float(session.step(batch.feeds)["loss"])}
    metrics = plan.make_metrics()
    for batch in plan.validation.epoch(0) if plan.validation else ():
        results = session.evaluate(batch.feeds)
        for metric in metrics:
            metric.update(results[plan.output], batch.feeds[plan.target])
    if plan.validation:
        found |= {metric.name: metric.result() for metric in metrics}
    assert np.isfinite(found["loss"])
    return found


def export(plan: TrainingPlan, path: Path) -> Path:
    """The untrained model of a plan, with its preprocessing."""
    model = plan.adapted.model.clone()
    store(model, plan.preprocessing)
    onward.save(model, path)
    return path


def reasons(plan: TrainingPlan) -> Mapping[str, str]:
    """What was chosen, by the name of the choice."""
    return {choice.what: choice.value for choice in plan.choices}
