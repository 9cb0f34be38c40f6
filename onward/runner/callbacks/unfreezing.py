"""Unfreezing: at the first step of a stage, the run goes on with a session that trains more."""

from __future__ import annotations

from onward.runner.callback import Callback
from onward.runner.events import StepRecord
from onward.runner.open_session import open_session
from onward.runner.run import Run


class Unfreezing(Callback):
    """Replaces the run's session where a stage of gradual unfreezing begins."""

    def on_step(self, run: Run, step: StepRecord) -> None:
        if any(stage.step == step.number for stage in run.plan.adapted.stages):
            previous = run.session
            run.session = open_session(run.plan, run.config, step.number, previous, run.team)
            previous.close()
