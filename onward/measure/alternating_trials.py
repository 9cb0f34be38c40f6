"""Measure several ways to run a model in turns, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from onward.errors import DeadlineExceeded, OnwardError
from onward.measure.tuning.trials import CallTimes, Candidate, Trial
from onward.message_text import first_line

LIMIT = 60.0  # seconds for one candidate in addition to its measuring: Inductor compiles for long
_ROUNDS = 5

T = TypeVar("T")
StepProgress = Callable[[str, float, float], None]  # what begins now, steps done, steps in all


@dataclass
class MeasuredCandidate:
    """A model, a way to run it, and its measurements so far."""

    model: Path
    candidate: Candidate
    feeds: Mapping[str, Any]
    first: float = 0.0  # seconds from nothing loaded to the first result
    outputs: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    memory: int = 0
    error: str = ""  # why it was not measured, or not to the end
    limit: float = LIMIT  # seconds that it may take in addition to its measuring
    left: float = LIMIT  # seconds of the limit and of its measuring that are left

    @property
    def timing(self) -> CallTimes | None:
        return CallTimes(self.times, self.memory) if self.times else None


def measure_in_turns(
    candidates: Sequence[MeasuredCandidate],
    seconds: float,
    limit: float = LIMIT,
    progress: StepProgress = lambda *_: None,
) -> bool:
    """Open and measure each candidate, then again in turns; return whether Ctrl-C ended it early.

    A candidate that takes longer than `limit` plus the seconds it is measured for is ended.
    """
    with ExitStack() as stack:
        trials = [
            stack.enter_context(Trial(each.model, each.candidate, each.feeds))
            for each in candidates
        ]
        pairs = list(zip(candidates, trials, strict=True))
        total, done = len(pairs) * _ROUNDS, 0
        try:
            for each, trial in pairs:
                each.limit, each.left = limit, limit + seconds
                progress(f"opening {each.candidate} (at most {limit:g} s)", done, total)
                _open(each, trial)
                _measure(each, trial, seconds / _ROUNDS)  # to have figures if it ends early
                done += 1
            for turn in range(1, _ROUNDS):  # every second turn in reverse: none is always first
                for each, trial in pairs if turn % 2 == 0 else reversed(pairs):
                    progress(f"measuring {each.candidate}", done, total)
                    _measure(each, trial, seconds / _ROUNDS)
                    done += 1
        except KeyboardInterrupt:
            return True
    return False


def _open(measured: MeasuredCandidate, trial: Trial) -> None:
    opening = _run_within_limit(measured, trial, lambda: trial.open(timeout=measured.left))
    if opening is not None:
        measured.first, measured.outputs = opening.seconds, opening.outputs
        # warm-up: a few calls that do not count
        _run_within_limit(measured, trial, lambda: trial.measure(0.0, timeout=measured.left))


def _measure(measured: MeasuredCandidate, trial: Trial, seconds: float) -> None:
    if measured.error:
        return
    timing = _run_within_limit(
        measured, trial, lambda: trial.measure(seconds, timeout=measured.left)
    )
    if timing is not None:
        measured.times += timing.times
        measured.memory = max(measured.memory, timing.memory)


def _run_within_limit(measured: MeasuredCandidate, trial: Trial, work: Callable[[], T]) -> T | None:
    """The work's result, its time subtracted from what is left; None, and an error, if it fails."""
    start = time.monotonic()
    try:
        return work()
    except DeadlineExceeded:
        measured.error = f"not done within its limit of {measured.limit:g} s"
    except OnwardError as error:
        measured.error = first_line(error)
    finally:
        measured.left = max(0.001, measured.left - (time.monotonic() - start))
    trial.close()
    return None
