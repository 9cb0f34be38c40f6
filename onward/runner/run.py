"""Run: a training run while the loop is in it: what it is made of, and where it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onward.errors import OnwardError
from onward.runner.config import TrainConfig
from onward.runner.events import Evaluation
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run_folder import RunFolder
from onward.runner.team import ALONE, Team
from onward.sessions.training.session import TrainingSession

if TYPE_CHECKING:
    from onward.runner.stored_states import Save, StoredStates

DONE = "finished"
INTERRUPTED = "interrupted"  # why a run stopped that Ctrl-C, or SIGTERM, ended


@dataclass(frozen=True)
class Saving:
    """A checkpoint that is being written, and the step of the one before it."""

    save: Save
    before: int


@dataclass
class Run:
    """A run. Its position is that of the next batch: a checkpoint keeps it."""

    config: TrainConfig
    plan: TrainingPlan
    session: TrainingSession
    folder: RunFolder  # process 0 writes to it
    checkpoints: StoredStates
    team: Team = ALONE
    step: int = 0  # updates, those that were skipped included
    rows: int = 0  # of all batches since this process began, in all processes
    epoch: int = 0
    batch: int = 0  # in the epoch
    micro: int = 0  # batches since the last update
    evaluated: int = -1  # the step of the last evaluation
    saved: int = -1  # the step of the last checkpoint, which may still be in writing
    saving: Saving | None = None
    saved_at: float = 0.0  # by the clock, when the last checkpoint or this process's training began
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    stopped: str = ""  # why the loop ends before its last step; the same in all processes
    error: OnwardError | None = None  # raised when everything is saved
    asked: tuple[str, OnwardError | None] | None = None  # a stop that this process asked for
    is_terminated: bool = False  # by SIGTERM: what sent it may start the run again
    seconds: float = 0.0  # of training, in earlier processes too
    clock: Callable[[], float] = time.perf_counter

    def stop(self, reason: str, error: OnwardError | None = None) -> None:
        """End the run after this step: a checkpoint is written, the model is exported.

        Only the first reason counts. With an error, `train` raises it at the end. One process of
        many asks the others (`agree`), so that all of them stop at the same step.
        """
        if self.asked is None:
            self.asked = reason, error
        if self.team.size == 1:
            self.agree()

    def agree(self) -> None:
        """Stop if a process has asked for it; all processes call this at the same places."""
        if not self.stopped and self.team.largest(self.asked is not None):
            self.adopt_stop()

    def adopt_stop(self) -> None:
        """Stop for the first reason that a process gave; all processes call this."""
        answers = self.team.gather((self.asked, self.is_terminated))
        self.stopped, self.error = next(asked for asked, _ in answers if asked is not None)
        self.is_terminated = any(terminated for _, terminated in answers)

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

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run, and shows it."""
        return self.team.rank == 0
