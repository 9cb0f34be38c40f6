"""DemoEpochs: the demo's training in the terminal, one line for each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import TaskID

from onward.cli.console import make_progress
from onward.runner.callback import Callback
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import Run

_BAR = 24  # characters that stand for the first loss


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch achieved."""

    epoch: int  # from 1
    loss: float  # the mean of its steps
    first_loss: float  # of the whole training: what `loss` is compared with
    accuracy: float  # on the held-out images
    steps_per_second: float


class DemoEpochs(Callback):
    """Shows a bar while an epoch is trained, and a line with its numbers after it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = make_progress(console)
        self._task: TaskID | None = None
        self._losses: list[float] = []  # of the epoch
        self._first_loss = 0.0
        self._started = 0.0

    def __enter__(self) -> DemoEpochs:
        heading = f"{'epoch':>9}   {'loss':{_BAR + 6}}   held out   steps/s"
        self._console.print(heading, style="bold")
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def on_start(self, run: Run) -> None:
        self._task = self._progress.add_task("training", total=run.plan.steps)
        self._started = run.clock()

    def on_step(self, run: Run, step: StepRecord) -> None:
        assert self._task is not None
        self._first_loss = self._first_loss or step.loss
        self._losses.append(step.loss)
        self._progress.update(self._task, advance=1, description=f"loss {step.loss:.3f}")

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        speed = len(self._losses) / (run.clock() - self._started - evaluation.seconds)
        accuracy = evaluation.numbers["val_accuracy"]
        loss = float(np.mean(self._losses))
        summary = EpochSummary(run.epoch + 1, loss, self._first_loss, accuracy, speed)
        mark = "#" if self._console.options.ascii_only else "█"
        self._console.print(epoch_line(summary, run.plan.epochs, mark))
        self._losses, self._started = [], run.clock()


def epoch_line(summary: EpochSummary, epochs: int, mark: str) -> str:
    """One epoch: its mean loss, as a number and as a bar, its accuracy and its speed."""
    bar = mark * round(min(summary.loss / max(summary.first_loss, 1e-9), 1.0) * _BAR)
    count = f"{summary.epoch}/{epochs}"
    return (
        f"{count:>9}   {summary.loss:.3f} {bar:{_BAR}}   {summary.accuracy:>8.1%}   "
        f"{summary.steps_per_second:>7,.0f}"
    )
