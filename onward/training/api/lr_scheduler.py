"""Schedulers: set an optimizer's learning rate by the number of its steps."""

from __future__ import annotations

from onward.errors import OptionError
from onward.optimizers.schedules import Schedule
from onward.training.api.optimizer import Optimizer


class LinearLRScheduler:
    """From 0 up to `initial_lr` over the warm-up, then down to 0 at the last step.

    The constructor sets the rate of the next step; call `step` after each step of the optimizer.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float
    ) -> None:
        self._stored = optimizer._stored
        self._warmup, self._total = int(warmup_step_count), int(total_step_count)
        self._stored.initial_learning_rate = float(initial_lr)
        self.step()

    def step(self) -> None:
        """Set the learning rate for the step that the optimizer takes next."""
        taken, initial = self._stored.step, self._stored.initial_learning_rate
        if taken < self._warmup:
            factor = taken / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - taken) / max(1, self._total - self._warmup))
        self._stored.learning_rate = initial * factor


class Scheduler:
    """Any schedule of onward.optimizers.schedules, over the steps of the optimizer.

    Scheduler(optimizer, Cosine(steps=1000)); `initial_lr` is the rate that the schedule scales:
    by default the optimizer's initial rate, also after a reload.
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Schedule, initial_lr: float | None = None
    ) -> None:
        if not isinstance(schedule, Schedule):
            raise OptionError(
                "schedule must be one of onward.optimizers.schedules, "
                f"not {type(schedule).__name__}\n"
                "give one, such as Cosine(steps=1000)"
            )
        self._stored, self._schedule = optimizer._stored, schedule
        if initial_lr is not None:
            self._stored.initial_learning_rate = float(initial_lr)
        self.step()

    def step(self) -> None:
        """Set the learning rate for the step that the optimizer takes next."""
        stored = self._stored
        rate = self._schedule.rate(stored.step, stored.initial_learning_rate)
        stored.learning_rate = float(rate)
