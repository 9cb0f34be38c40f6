"""Schedules: the learning rate as a pure function of the number of updates.

`rate(step, lr)`: step counts from 0, lr is the optimizer's own rate. Schedules have no state, so a
resumed run continues exactly. Those that torch has as well are equal to torch's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onward.errors import OptionError
from onward.optimizers.json_records import record, restore
from onward.settings import (
    above,
    check_fields,
    choice,
    instance_of,
    integer,
    number,
    several,
    true_or_false,
)


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A schedule has a rate for each step, and a JSON form."""

    @abstractmethod
    def rate(self, step: int, lr: float = 1.0) -> float:
        """The learning rate of the update after `step` updates; lr is the optimizer's."""

    def to_dict(self) -> dict[str, Any]:
        """The schedule as JSON; `schedule_from_dict` reads it."""
        return record(self)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """lr, or factor lr during the first `steps` updates (torch's ConstantLR)

    Attributes:
        factor: of the learning rate, during the first `steps` updates
        steps: the number of updates with this factor; 0: none

    >>> Constant().rate(7, lr=0.1)
    0.1
    """

    factor: float = 1.0
    steps: int = 0

    def __post_init__(self) -> None:
        check_fields(self, factor=number(), steps=integer(0))

    def rate(self, step: int, lr: float = 1.0) -> float:
        return lr * self.factor if step < self.steps else lr


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A line from start_factor lr to end_factor lr in `steps` updates, then flat (torch's LinearLR)

    Attributes:
        steps: updates from the start to the end
        start_factor: of the learning rate at the start
        end_factor: of the learning rate at the end, and after it

    >>> Linear(steps=4).rate(1, lr=0.5)
    0.375
    """

    steps: int
    start_factor: float = 1.0
    end_factor: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, steps=integer(1), start_factor=number(), end_factor=number())

    def rate(self, step: int, lr: float = 1.0) -> float:
        done = min(step, self.steps) / self.steps
        return lr * (self.start_factor + (self.end_factor - self.start_factor) * done)


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """(end + (1 - end) (1 - step / steps)^power) lr, then flat (PolynomialLR; there end is 0)

    Attributes:
        steps: updates from the start to the end
        power: the exponent
        end_factor: of the learning rate at the end, and after it

    >>> Polynomial(steps=4, power=2.0).rate(2, lr=0.1)
    0.025
    """

    steps: int
    power: float = 1.0
    end_factor: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, steps=integer(1), power=number(), end_factor=number())

    def rate(self, step: int, lr: float = 1.0) -> float:
        left = 1.0 - min(step, self.steps) / self.steps
        return lr * (self.end_factor + (1.0 - self.end_factor) * left**self.power)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from lr down to `minimum` in `steps` updates, then flat (CosineAnnealingLR)

    With restarts it begins again after each period, every period `multiplier` times as long as the
    previous one (CosineAnnealingWarmRestarts).

    Attributes:
        steps: updates from the top to the minimum; with restarts, of the first period
        minimum: the rate at the end (a rate, not a factor)
        restarts: begin again after each period
        multiplier: the length of each period divided by that of the previous one

    >>> [round(Cosine(steps=2, restarts=True).rate(step), 3) for step in range(4)]
    [1.0, 0.5, 1.0, 0.5]
    """

    steps: int
    minimum: float = 0.0
    restarts: bool = False
    multiplier: int = 1

    def __post_init__(self) -> None:
        check_fields(self, steps=integer(1), minimum=number())
        check_fields(self, restarts=true_or_false, multiplier=integer(1))

    def rate(self, step: int, lr: float = 1.0) -> float:
        done, period = min(step, self.steps), self.steps
        if self.restarts:
            done, period = self._place(step)
        return self.minimum + (lr - self.minimum) * (1.0 + math.cos(math.pi * done / period)) / 2.0

    def _place(self, step: int) -> tuple[int, int]:
        """(steps since the last restart, length of this period)"""
        if self.multiplier == 1:
            return step % self.steps, self.steps
        period = self.steps
        while step >= period:
            step, period = step - period, period * self.multiplier
        return step, period


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Up to lr, then far down, in `steps` updates (torch's OneCycleLR; lr is its max_lr)

    It begins at lr / div_factor, reaches lr after the share pct_start, and ends at
    lr / div_factor / final_div_factor; three_phase goes back to the beginning in between.

    Attributes:
        steps: updates of the whole cycle
        pct_start: the share of the steps in which the rate rises
        anneal_strategy: "cos" or "linear"
        div_factor: the first rate is lr / div_factor
        final_div_factor: the last rate is the first one / final_div_factor
        three_phase: return to the first rate before going down to the last one
    """

    steps: int
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        check_fields(self, steps=integer(1), pct_start=number(high=1.0))
        check_fields(self, anneal_strategy=choice("cos", "linear"), three_phase=true_or_false)
        check_fields(self, div_factor=above(0.0), final_div_factor=above(0.0))

    def rate(self, step: int, lr: float = 1.0) -> float:
        step = min(step, self.steps - 1)
        first = lr / self.div_factor
        rise = float(self.pct_start * self.steps) - 1.0
        fall = float(2 * self.pct_start * self.steps) - 2.0
        turns = [(rise, lr), (fall, first)] if self.three_phase else [(rise, lr)]
        turns.append((self.steps - 1, first / self.final_div_factor))
        start, begin = 0.0, first
        for end, target in turns[:-1]:
            if step <= end:
                return self._between(begin, target, step - start, end - start)
            start, begin = end, target
        end, target = turns[-1]
        return self._between(begin, target, step - start, end - start)

    def _between(self, start: float, end: float, done: float, whole: float) -> float:
        share = done / whole if whole else 1.0
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1.0)


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """gamma^(step // size) lr (torch's StepLR)

    Attributes:
        size: updates between two drops
        gamma: the factor at each drop

    >>> Step(size=10, gamma=0.5).rate(25, lr=0.4)
    0.1
    """

    size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, size=integer(1), gamma=number())

    def rate(self, step: int, lr: float = 1.0) -> float:
        return lr * _power(self, self.gamma, step // self.size)


@dataclass(frozen=True, kw_only=True)
class MultiStep(Schedule):
    """gamma^n lr after n of the milestones (torch's MultiStepLR)

    Attributes:
        milestones: the updates at which the rate drops
        gamma: the factor at each drop

    >>> MultiStep(milestones=(10, 20), gamma=0.5).rate(10, lr=0.4)
    0.2
    """

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        whole_numbers = several(integer(), "a list of whole numbers")
        check_fields(self, milestones=whole_numbers, gamma=number())

    def rate(self, step: int, lr: float = 1.0) -> float:
        passed = sum(step >= milestone for milestone in self.milestones)
        return lr * _power(self, self.gamma, passed)


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """gamma^step lr (torch's ExponentialLR)

    Attributes:
        gamma: the factor at each update

    >>> Exponential(gamma=0.5).rate(2, lr=0.4)
    0.1
    """

    gamma: float

    def __post_init__(self) -> None:
        check_fields(self, gamma=number())

    def rate(self, step: int, lr: float = 1.0) -> float:
        return lr * _power(self, self.gamma, step)


@dataclass(frozen=True, kw_only=True)
class WarmUp(Schedule):
    """A line from start_factor to the first rate of a schedule in `steps` updates; then the latter

    The schedule begins when the warm-up ends (torch: SequentialLR of LinearLR and the schedule).

    Attributes:
        steps: updates of the warm-up
        schedule: the schedule after the warm-up
        start_factor: of the first rate, where the line begins

    >>> warm = WarmUp(steps=4, schedule=Linear(steps=2))
    >>> [warm.rate(step) for step in range(7)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 0.5, 0.0]
    """

    steps: int
    schedule: Schedule
    start_factor: float = 0.0

    def __post_init__(self) -> None:
        follows = instance_of(Schedule, "Constant() or Cosine(steps=1000)", "a schedule")
        check_fields(self, steps=integer(0), start_factor=number(), schedule=follows)

    def rate(self, step: int, lr: float = 1.0) -> float:
        if step >= self.steps:
            return self.schedule.rate(step - self.steps, lr)
        done = step / self.steps
        return self.schedule.rate(0, lr) * (self.start_factor + (1.0 - self.start_factor) * done)


def _power(schedule: Schedule, gamma: float, times: int) -> float:
    try:
        return float(gamma**times)
    except OverflowError:
        raise OptionError(
            f"{schedule!r} overflows after {times} times gamma\ntake a gamma of at most 1"
        ) from None


SCHEDULES: dict[str, type[Schedule]] = {
    kind.__name__: kind
    for kind in (
        Constant,
        Linear,
        Polynomial,
        Cosine,
        OneCycle,
        Step,
        MultiStep,
        Exponential,
        WarmUp,
    )
}


def schedule_from_dict(data: Mapping[str, Any]) -> Schedule:
    """The schedule that `to_dict` wrote.

    >>> schedule_from_dict({"kind": "Cosine", "steps": 100})
    Cosine(steps=100, minimum=0.0, restarts=False, multiplier=1)
    """
    return restore(data, SCHEDULES, "schedule")
