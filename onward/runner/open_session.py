"""Open the session of a run: its precision, its provider, its stage of unfreezing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.measure.machine import usable_cores
from onward.providers.options import SessionOptions
from onward.runner.activation_memory import with_memory
from onward.runner.asked_providers import asked_providers
from onward.runner.config import TrainConfig
from onward.runner.finetune.unfreezing import open_stage, stage_at
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.precision import choose_precision
from onward.runner.team import ALONE, Team
from onward.sessions.training.session import TrainingSession


def open_session(
    plan: TrainingPlan,
    config: TrainConfig,
    step: int = 0,
    previous: TrainingSession | None = None,
    team: Team = ALONE,
) -> TrainingSession:
    """The session that makes the update after `step`; it takes over from `previous`."""
    model, options = plan.adapted.model, with_memory(plan, config)
    precision = choose_precision(config.mixed_precision, asked_providers(config))
    if precision is not None:
        options = replace(options, precision=precision)
    engine: dict[str, Any] = {
        "sess_options": session_options(config, team.local_size),
        "providers": asked_providers(config),
        "parallel": team.parallel,
    }
    if plan.adapted.stages:
        stage = stage_at(plan.adapted.stages, step)
        return open_stage(model, plan.loss, plan.optimizer, options, stage, previous, **engine)
    return TrainingSession(model, plan.loss, plan.optimizer, options, **engine)


def session_options(config: TrainConfig, processes: int = 1) -> SessionOptions:
    """The options of an engine; its errors are raised, not printed in addition.

    Several processes of one machine share its cores.
    """
    threads = config.threads
    if not threads and processes > 1:
        threads = max(usable_cores() // processes, 1)
    return SessionOptions(log_severity_level=4, intra_op_num_threads=threads)
