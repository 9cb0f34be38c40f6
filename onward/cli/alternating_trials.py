"""Ways to run a model that take turns, each in its own process: what bench and compare show."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from onward.cli.progress import Work
from onward.errors import DeadlineExceeded, OnwardError
from onward.measure.tuning.trials import CallTimes, Candidate, Trial

LIMIT = 60.0  # seconds that one may take in addition to its measuring: Inductor compiles for long
_ROUNDS = 5

T = TypeVar("T")


@dataclass
class Runner:
    """A model and a way to run it, and what was seen so far."""

    model: Path
    candidate: Candidate
    feeds: Mapping[str, Any]
    first: float = 0.0  # seconds from nothing loaded to the first result
    outputs: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    memory: int = 0
    error: str = ""  # why it was not measured, or not to the end
    limit: float = LIMIT  # seconds that it may take in addition to its measuring
    left: float = LIMIT  # ... that are left, with those of its measuring

    @property
    def timing(self) -> CallTimes | None:
        return CallTimes(self.times, self.memory) if self.times else None


def race(runners: Sequence[Runner], seconds: float, limit: float = LIMIT) -> bool:
    """Open each and measure it, then let them take turns; True when Ctrl-C ended it early.

    One that takes longer than `limit` and the seconds that it is measured for is ended.
    """
    with ExitStack() as stack, Work() as work:
        trials = [
            stack.enter_context(Trial(runner.model, runner.candidate, runner.feeds))
            for runner in runners
        ]
        pairs = list(zip(runners, trials, strict=True))
        total, done = len(pairs) * _ROUNDS, 0
        try:
            for runner, trial in pairs:
                runner.limit, runner.left = limit, limit + seconds
                work.at(f"opening {runner.candidate} (at most {limit:g} s)", done, total)
                _open(runner, trial)
                _measure(runner, trial, seconds / _ROUNDS)  # to have figures if it ends early
                done += 1
            for turn in range(1, _ROUNDS):  # every other one in reverse: no one is always first
                for runner, trial in pairs if turn % 2 == 0 else reversed(pairs):
                    work.at(f"measuring {runner.candidate}", done, total)
                    _measure(runner, trial, seconds / _ROUNDS)
                    done += 1
        except KeyboardInterrupt:
            return True
    return False


def _open(runner: Runner, trial: Trial) -> None:
    opening = _within(runner, trial, lambda: trial.open(timeout=runner.left))
    if opening is not None:
        runner.first, runner.outputs = opening.seconds, opening.outputs
        # warm: a few calls that do not count
        _within(runner, trial, lambda: trial.measure(0.0, timeout=runner.left))


def _measure(runner: Runner, trial: Trial, seconds: float) -> None:
    if runner.error:
        return
    timing = _within(runner, trial, lambda: trial.measure(seconds, timeout=runner.left))
    if timing is not None:
        runner.times += timing.times
        runner.memory = max(runner.memory, timing.memory)


def _within(runner: Runner, trial: Trial, work: Callable[[], T]) -> T | None:
    """What the work gives, its time taken from the runner's; None, and why, where it failed."""
    start = time.monotonic()
    try:
        return work()
    except DeadlineExceeded:
        runner.error = f"not done within {runner.limit:g} s (--limit gives it more)"
    except OnwardError as error:
        runner.error = str(error).splitlines()[0]
    finally:
        runner.left = max(0.001, runner.left - (time.monotonic() - start))
    trial.close()
    return None
