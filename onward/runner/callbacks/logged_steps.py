"""LoggedSteps: the numbers of steps for callbacks that write them, every few steps."""

from __future__ import annotations

from collections.abc import Mapping

from onward.runner.callback import Callback
from onward.runner.callbacks.throughput import MemoryReader, Throughput
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import Run

_LINES = 200  # of a run
_LONGEST = 50  # steps without a line
_WINDOW = 50  # steps whose speed is averaged, where there are as many between two lines or fewer


class LoggedSteps(Callback):
    """Measures the speed, and calls `log_step` where numbers are to be written."""

    _speed: Throughput | None = None
    _memory = MemoryReader()  # of the process: one for all
    _counted = 0  # rows of the run whose speed was measured

    def on_start(self, run: Run) -> None:
        self.steps_between = run.config.log_every or usual_interval(run.plan.steps)
        self._speed = Throughput(run.clock, max(_WINDOW // self.steps_between, 1))
        self._speed.start(run.plan.training.waited)
        self._counted = run.rows

    def on_step(self, run: Run, step: StepRecord) -> None:
        assert self._speed is not None
        self._speed.add(run.rows - self._counted, run.plan.training.waited)
        self._counted = run.rows
        numbers = {
            "loss": step.loss,
            "learning_rate": step.learning_rate,
            "gradient_norm": run.session.gradient_norm,
            "samples_per_second": self._speed.samples_per_second,
            "data_wait": self._speed.data_wait,
            "memory": self._memory.now(),
        }
        self.log_step(run, step, numbers)

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        assert self._speed is not None
        self._speed.exclude(evaluation.seconds)

    def log_step(self, run: Run, step: StepRecord, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step."""


def usual_interval(steps: int) -> int:
    """The number of steps between two lines of a run of so many steps.

    >>> usual_interval(90), usual_interval(2000), usual_interval(1_000_000)
    (1, 10, 50)
    """
    return min(max(steps // _LINES, 1), _LONGEST)
