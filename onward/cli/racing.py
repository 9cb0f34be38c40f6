"""Ways to run a model that take turns, each in its own process: what bench and compare show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from onward.cli.screen import make_progress
from onward.errors import OnwardError
from onward.sessions.tuning.trials import Candidate, Timing, Trial

_ROUNDS = 5


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
    error: str = ""

    @property
    def timing(self) -> Timing | None:
        return Timing(self.times, self.memory) if self.times and not self.error else None


def race(runners: Sequence[Runner], seconds: float, console: Console) -> bool:
    """Open each, then let them take turns; True when Ctrl-C ended it before its time."""
    with ExitStack() as stack, make_progress(console) as progress:
        task = progress.add_task("opening", total=len(runners) * (_ROUNDS + 1))
        trials = [
            stack.enter_context(Trial(runner.model, runner.candidate, runner.feeds))
            for runner in runners
        ]
        pairs = list(zip(runners, trials, strict=True))
        try:
            for runner, trial in pairs:
                progress.update(task, advance=1, description=f"opening {runner.candidate}")
                _open(runner, trial)
            for turn in range(_ROUNDS):  # every other time in reverse: nobody is always first
                for runner, trial in pairs if turn % 2 == 0 else reversed(pairs):
                    progress.update(task, advance=1, description=f"measuring {runner.candidate}")
                    _measure(runner, trial, seconds / _ROUNDS)
        except KeyboardInterrupt:
            return True
    return False


def _open(runner: Runner, trial: Trial) -> None:
    try:
        opening = trial.open()
        runner.first, runner.outputs = opening.seconds, opening.outputs
        trial.measure(0.0)  # warm: a few calls that do not count
    except OnwardError as error:
        runner.error = str(error).splitlines()[0]
        trial.close()


def _measure(runner: Runner, trial: Trial, seconds: float) -> None:
    if runner.error:
        return
    try:
        timing = trial.measure(seconds)
    except OnwardError as error:
        runner.error = str(error).splitlines()[0]
        return
    runner.times += timing.times
    runner.memory = max(runner.memory, timing.memory)
