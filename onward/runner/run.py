"""Run: the state of a training run while the loop is in it, and what callbacks may do to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onward.runner.config import TrainConfig
from onward.runner.events import Evaluation
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run_folder import RunFolder
from onward.sessions.training.session import TrainingSession

DONE, INTERRUPTED = "finished", "interrupted"


@dataclass
class Run:
    """A run: what it is made of, and where it is."""

    config: TrainConfig
    plan: TrainingPlan
    session: TrainingSession
    folder: RunFolder
    step: int = 0  # updates that were made
    epoch: int = 0  # of the next batch
    batch: int = 0  # the next batch's number in the epoch
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    stopped: str = ""  # why the loop ends before its last step; empty: it goes on
    seconds: float = 0.0  # of training, in earlier processes too
    clock: Callable[[], float] = time.perf_counter

    def stop(self, reason: str) -> None:
        """End the run after this step; a checkpoint is written and the model exported."""
        self.stopped = self.stopped or reason

    @property
    def steps_left(self) -> int:
        return max(self.plan.steps - self.step, 0)
