"""Run: a training run while the loop is in it: what it is made of, and where it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onward.checkpoints.folder import Checkpoints
from onward.errors import OnwardError
from onward.runner.config import TrainConfig
from onward.runner.events import Evaluation
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run_folder import RunFolder
from onward.sessions.training.session import TrainingSession

DONE = "finished"
INTERRUPTED = "interrupted"  # why a run stopped that Ctrl-C, or SIGTERM, ended


@dataclass
class Run:
    """A run. Its position is that of the next batch: a checkpoint keeps it."""

    config: TrainConfig
    plan: TrainingPlan
    session: TrainingSession
    folder: RunFolder
    checkpoints: Checkpoints
    step: int = 0  # updates, those that were skipped included
    epoch: int = 0
    batch: int = 0  # in the epoch
    micro: int = 0  # batches since the last update
    evaluated: int = -1  # the step of the last evaluation
    saved: int = -1  # the step of the last checkpoint
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    stopped: str = ""  # why the loop ends before its last step
    error: OnwardError | None = None  # raised when everything is saved
    seconds: float = 0.0  # of training, in earlier processes too
    clock: Callable[[], float] = time.perf_counter

    def stop(self, reason: str, error: OnwardError | None = None) -> None:
        """End the run after this step: a checkpoint is written, the model is exported.

        Only the first reason counts. With an error, `train` raises it at the end.
        """
        if not self.stopped:
            self.stopped, self.error = reason, error

    @property
    def is_over(self) -> bool:
        return bool(self.stopped) or self.step >= self.plan.steps

    @property
    def steps_left(self) -> int:
        return max(self.plan.steps - self.step, 0)

    @property
    def ends_epoch(self) -> bool:
        """Whether the next batch would be the first of another epoch."""
        return self.batch >= len(self.plan.training)

    @property
    def is_interrupted(self) -> bool:
        return self.stopped == INTERRUPTED
