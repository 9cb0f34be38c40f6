"""Gradual unfreezing within one run: each stage is a session that continues the one before.

    for stage in adapted.stages:
        session = open_stage(adapted.model, loss, optimizer, options, stage, session)
        ...  # steps until the next stage's first one

A run that is resumed at a step opens the stage of that step and restores its checkpoint:

    session = open_stage(model, loss, optimizer, options, stage_at(stages, step))
    session.load(checkpoint)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.losses.loss import Loss
from onward.optimizers.optimizer import Optimizer
from onward.programs.program import AVERAGE, Array, Layout, slot_name
from onward.programs.training_options import TrainingOptions
from onward.providers.choose import Asked
from onward.runner.finetune.layer_depths import UnfreezingStage
from onward.sessions.training.session import TrainingSession


def stage_at(stages: Sequence[UnfreezingStage], step: int) -> UnfreezingStage:
    """The stage that makes the update after `step` updates.

    >>> stages = [UnfreezingStage(0, ("b",)), UnfreezingStage(10, ("b", "a"))]
    >>> [stage_at(stages, step).step for step in (0, 9, 10)]
    [0, 0, 10]
    """
    return max((each for each in stages if each.step <= step), key=lambda each: each.step)


def open_stage(
    plan_model: ir.Model,
    loss: Loss,
    optimizer: Optimizer,
    options: TrainingOptions,
    stage: UnfreezingStage,
    previous: TrainingSession | None = None,
    *,
    sess_options: Any = None,
    providers: Asked = None,
    parallel: Any = None,
) -> TrainingSession:
    """A session that trains the parameters of a stage, from where the previous session is.

    It takes over parameters, statistics, the optimizer's state, the number of updates (and so the
    position in the schedule), the learning rate, the loss scale and the user's properties. Second
    moments of parameters that join begin at the mean of the others': the correction of Adam counts
    the updates of the session, so from zero its first updates would be several times too large.

    Args:
        plan_model: the model of the first stage, with its first weights
        loss: of the run
        optimizer: of the run
        options: of the run; the stage replaces `trainable` and `frozen`
        stage: what is trained now
        previous: the session of the stage before, which stays open; None: start, or resume
        sess_options: as in TrainingSession
        providers: as in TrainingSession
        parallel: as in TrainingSession
    """
    own = replace(options, trainable=stage.names, frozen=())
    session = TrainingSession(
        plan_model,
        loss,
        optimizer,
        own,
        sess_options=sess_options,
        providers=providers,
        parallel=parallel,
    )
    if previous is None:
        return session
    old, properties = previous.checkpoint()
    training = properties["training"]
    if training["micro"]:
        raise OptionError(
            f"a stage cannot begin with {training['micro']} batches that await their update\n"
            "open it after an update"
        )
    session.set_learning_rate(training["updates"]["learning_rate"])
    first, state = session.checkpoint()
    updates = state["training"]["updates"]
    counts = {name: training["updates"][name] for name in ("steps", "skipped")}
    joined = _begin_moments(session.program.layout, previous.program.layout, old)
    session.restore(
        {**first, **joined, **{name: old[name] for name in first if name in old}},
        {**properties, "training": {**training, "updates": {**updates, **counts}}},
        where="the stage before",
    )
    return session


def _begin_moments(layout: Layout, before: Layout, old: Mapping[str, Array]) -> dict[str, Array]:
    """Slots of parameters that join, where those of the others are never negative: their mean."""
    kept, found = set(before.names), dict[str, Array]()
    for update in layout.updates:
        for slot, shapes in update.slots.items():
            others = [old[slot_name(slot, n)] for n in before.names if slot_name(slot, n) in old]
            count = sum(each.size for each in others)
            if slot == AVERAGE or not count or any((each < 0).any() for each in others):
                continue
            mean = sum(float(each.sum(dtype=np.float64)) for each in others) / count
            for name in shapes.keys() - kept:
                found[slot_name(slot, name)] = np.full(shapes[name], mean, update.slot_dtype(slot))
    return found
