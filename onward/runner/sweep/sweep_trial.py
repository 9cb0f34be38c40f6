"""One trial of a sweep: what is run, what comes back, and how a poor trial is stopped early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from onward.errors import OnwardError, OptionError
from onward.runner.callback import Callback
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import DONE, INTERRUPTED, Run
from onward.runner.train import train

PRUNED = "pruned"


@dataclass(frozen=True)
class TrialResult:
    """The numbers of a trial's run; `monitor` names the one that trials are compared by."""

    numbers: Mapping[str, float]
    monitor: str
    higher_is_better: bool = False
    stopped: str = DONE
    folder: str = ""
    steps: int = 0

    def value(self) -> float:
        """The monitored number; an error if the run has none, or it is not finite."""
        if self.monitor not in self.numbers:
            raise OptionError(
                f"the run has no number {self.monitor!r} to compare trials by\n"
                "give --validation or --validation-split above 0"
            )
        value = float(self.numbers[self.monitor])
        if not math.isfinite(value):
            raise ArithmeticError(f"{self.monitor} is {value}")
        return value

    def score(self) -> float:
        """The monitored number so that less is better."""
        return -self.value() if self.higher_is_better else self.value()


Settings = dict[str, Any]
RunTrial = Callable[[Settings, list[Callback]], TrialResult]
TRAIN = "onward.runner.sweep.sweep_trial:train_trial"


def train_trial(settings: Settings, callbacks: list[Callback]) -> TrialResult:
    """Train with these settings; `model`, `data` and `validation` are among them."""
    rest = dict(settings)
    first = [rest.pop(name, None) for name in ("model", "data", "validation")]
    watch = WatchMonitor()
    run = train(
        first[0],
        first[1],
        validation=first[2],
        callbacks=[*callbacks, watch],
        parallel=None,
        **rest,
    )
    return TrialResult(
        dict(run.metrics),
        watch.monitor,
        watch.higher_is_better,
        run.stopped or DONE,
        str(run.folder.path),
        run.steps,
    )


class WatchMonitor(Callback):
    """Keeps the name of the monitored number."""

    monitor, higher_is_better = "", False

    def on_start(self, run: Run) -> None:
        self.monitor, self.higher_is_better = run.plan.monitor, run.plan.higher_is_better


class PruneTrial(Callback):
    """Reports each evaluation to the study, and stops the run if others were better by then."""

    def __init__(self, trial: Any) -> None:
        self._trial = trial  # of Optuna
        self._evaluations = 0  # not steps, which differ with the batch size

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        value = evaluation.numbers.get(run.plan.monitor, math.nan)
        if not math.isfinite(value):
            return
        self._evaluations += 1
        self._trial.report(-value if run.plan.higher_is_better else value, self._evaluations)
        if self._trial.should_prune():
            run.stop(PRUNED)


class StopWhenAsked(Callback):
    """Stops the run at its next step once `asked` returns true: Ctrl-C in the sweep's process."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def on_start(self, run: Run) -> None:
        self._check(run)

    def on_step(self, run: Run, step: StepRecord) -> None:
        self._check(run)

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        self._check(run)

    def _check(self, run: Run) -> None:
        if self._asked():
            run.stop(INTERRUPTED)


def find_run_trial(named: RunTrial | str) -> RunTrial:
    """A function, or the one that "module:function" names."""
    if callable(named):
        return named
    module, _, function = named.partition(":")
    try:
        found: RunTrial = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"run_trial {named!r} cannot be imported: {error}") from error
    return found


def describe_error(error: BaseException) -> str:
    """An error in one line, as the table of trials shows it."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return text if isinstance(error, OnwardError) and text else f"{type(error).__name__}: {text}"


def same_error(errors: Sequence[str]) -> bool:
    """Whether these errors differ in numbers at most."""
    letters = {"".join(c for c in each if not c.isdigit()) for each in errors}
    return len(letters) == 1
