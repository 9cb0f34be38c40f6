"""A run with a real small session and no loop, for the tests of callbacks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onward import losses, optimizers
from onward.graph.builder import OpBuilder
from onward.runner.callback import Callback
from onward.runner.config import make_config
from onward.runner.data.batches import DataBatch
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run_folder import RunFolder
from onward.sessions.training.session import TrainingSession

BATCH, SIZE, CLASSES = 4, 6, 3


class Clock:
    """A clock that moves one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def make_session(**options: Any) -> TrainingSession:
    """A session of a small classifier, opened on ONNX Runtime."""
    op = OpBuilder()
    random = np.random.default_rng(0)
    x = op.input("x", "float32", ("rows", SIZE))
    w = op.initializer("w", random.normal(size=(SIZE, CLASSES)).astype(np.float32))
    b = op.initializer("b", np.zeros(CLASSES, np.float32))
    model = op.model(y=op.Add(op.MatMul(x, w), b))
    return TrainingSession(model, losses.CrossEntropy(), optimizers.AdamW(lr=0.1), options or None)


def make_batch(number: int) -> DataBatch:
    random = np.random.default_rng(number)
    feeds = {
        "x": random.normal(size=(BATCH, SIZE)).astype(np.float32),
        "labels": random.integers(0, CLASSES, BATCH),
    }
    return DataBatch(feeds, np.arange(BATCH))


def fake_run(folder: Path, *, steps: int = 20, session: Any = None, **settings: Any) -> Any:
    """What callbacks read of a Run."""
    plan = SimpleNamespace(
        training=SimpleNamespace(waited=0.0),
        steps=steps,
        monitor="val_accuracy",
        higher_is_better=True,
    )
    run = SimpleNamespace(
        config=make_config(**{"log_every": 2, **settings}),
        plan=plan,
        session=session or SimpleNamespace(gradient_norm=0.5, parameters={}),
        folder=RunFolder(folder),
        step=0,
        rows=0,
        stopped="",
        best=None,
        clock=Clock(),
    )
    run.stop = lambda reason: setattr(run, "stopped", run.stopped or reason)
    run.folder.path.mkdir(parents=True, exist_ok=True)
    return run


def make_step(run: Any, *callbacks: Callback) -> None:
    """Make one step, as the loop does; without a real session, the loss is 1 / step."""
    run.step += 1
    batch = make_batch(run.step)
    results = {"loss": np.float32(1 / run.step)}
    if isinstance(run.session, TrainingSession):
        results = run.session.step(batch.feeds)
    record = StepRecord(run.step, 0, batch, results, 0.1)
    run.rows += len(batch) * run.config.gradient_accumulation_steps
    for callback in callbacks:
        if run.step % callback.steps_between == 0:
            callback.on_step(run, record)


def evaluate(run: Any, *callbacks: Callback, **numbers: float) -> None:
    evaluation = Evaluation(run.step, 0, numbers, seconds=0.0)
    for callback in callbacks:
        callback.on_evaluate(run, evaluation)
