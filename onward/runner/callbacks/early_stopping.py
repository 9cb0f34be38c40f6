"""EarlyStopping: end a run whose evaluations no longer improve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward import settings
from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.runner.callback import Callback
from onward.runner.events import Evaluation
from onward.runner.run import Run


class EarlyStopping(Callback):
    """Stop after `patience` evaluations in a row that did not improve the monitored number.

    `least` is the smallest change that counts as an improvement. A run that it has stopped and that
    is resumed stops again before its next step, unless the patience is larger or the run longer.

    onward.train("model.onnx", "data.csv", callbacks=[EarlyStopping(patience=3)])
    """

    def __init__(self, patience: int, least: float = 0.0) -> None:
        self.patience: int = settings.integer(1)("EarlyStopping.patience", patience)
        self.least: float = settings.number(0)("EarlyStopping.least", least)
        self._best: float | None = None
        self._since = 0  # evaluations without an improvement
        self._steps: int | None = None  # of the whole run, as it was planned

    def on_start(self, run: Run) -> None:
        if self._steps is not None and run.plan.steps > self._steps and self._is_over:
            self._since = 0  # it was asked to train longer
        self._steps = run.plan.steps
        if self._is_over:
            run.stop(f"{self._reason(run)}; to train on, give more --patience or --epochs")

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        monitor = run.plan.monitor
        if monitor not in evaluation.numbers:
            raise OptionError(
                f"there is no number {monitor!r} to stop early by\n"
                f"{suggest_names(monitor, evaluation.numbers)}"
            )
        if self._improves(float(evaluation.numbers[monitor]), run.plan.higher_is_better):
            self._best, self._since = float(evaluation.numbers[monitor]), 0
            return
        self._since += 1
        if self._is_over:
            run.stop(self._reason(run))

    @property
    def _is_over(self) -> bool:
        return self._since >= self.patience

    def _reason(self, run: Run) -> str:
        many = "s" * (self.patience > 1)
        return f"no improvement of {run.plan.monitor} in {self.patience} evaluation{many}"

    def _improves(self, number: float, higher: bool) -> bool:
        """Whether a number is better than the best one; NaN never is."""
        if self._best is None:
            return number == number
        gain = number - self._best if higher else self._best - number
        return gain > self.least

    def state(self) -> dict[str, Any]:
        return {"best": self._best, "since": self._since, "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        best = state.get("best")
        self._best = None if best is None else float(best)
        self._since = int(state.get("since", 0))
        self._steps = state.get("steps")
