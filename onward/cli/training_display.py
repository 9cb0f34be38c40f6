"""TrainingDisplay: a run in the terminal: progress, loss, speed, evaluations.

In a terminal, one live line with a bar and one with numbers, redrawn a few times a second;
elsewhere plain lines, one for each evaluation and one now and then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onward.cli.console import make_console
from onward.formatting import percent, show_bytes
from onward.runner.callback import Callback
from onward.runner.callbacks.throughput import MemoryReader, Throughput, show_time
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import Run

_REDRAW = 0.2  # seconds between two drawings
_LINE = 30.0  # seconds between two lines where there is no terminal
_SMOOTH = 0.9  # share of the old loss in the smoothed one, at each drawing


class TrainingDisplay(Callback):
    """Shows a run while it goes on.

    The loss is read only when it is drawn: on a GPU, reading it waits for the step. Also a context,
    which restores the terminal when an exception ends the loop.

    with TrainingDisplay() as display:
        onward.train("model.onnx", "data.csv", callbacks=[display])
    """

    def __init__(
        self, console: Console | None = None, memory: Callable[[], float] | None = None
    ) -> None:
        self._console = console or make_console()
        self._memory = memory or MemoryReader().now
        self._live: Live | None = None
        self._speed: Throughput | None = None
        self._next = 0.0  # when to draw again
        self._loss = math.nan
        self._last: Evaluation | None = None
        self._best: Evaluation | None = None

    def __enter__(self) -> TrainingDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing, and leave the last picture; closing twice is fine."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    # -- moments of the run -----------------------------------------------------------------------

    def on_start(self, run: Run) -> None:
        self._speed = Throughput(run.clock)
        self._speed.start(run.plan.training.waited)
        self._best = run.best
        self._next = run.clock() + self._pause
        if self._is_drawn:
            self._live = Live(
                self._draw(run, run.session.learning_rate),
                console=self._console,
                auto_refresh=False,
            )
            self._live.start(refresh=True)

    def on_step(self, run: Run, step: StepRecord) -> None:
        assert self._speed is not None
        batches = run.config.gradient_accumulation_steps
        self._speed.add(step.batch.whole * batches, run.plan.training.waited)
        now = run.clock()
        if now < self._next and run.steps_left:
            return
        self._next = now + self._pause
        loss = step.loss
        is_first = not math.isfinite(self._loss)
        self._loss = loss if is_first else _SMOOTH * self._loss + (1 - _SMOOTH) * loss
        if self._live is not None:
            self._live.update(self._draw(run, step.learning_rate), refresh=True)
        elif not self._is_drawn:
            facts = self._facts(run, step.learning_rate)
            self._print(f"step {run.step}/{run.plan.steps}: {_join(facts)}")

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        assert self._speed is not None
        self._speed.exclude(evaluation.seconds)
        self._last = evaluation
        if evaluation.is_best or self._best is None:
            self._best = evaluation
        mark = "  (best)" if evaluation.is_best else ""
        where = f"epoch {evaluation.epoch + 1}, step {evaluation.step}"
        self._print(f"{where}: {_numbers(evaluation.numbers)}{mark}")

    def on_end(self, run: Run) -> None:
        if self._live is not None:
            self._live.update(self._draw(run, run.session.learning_rate), refresh=True)
        self.close()
        if run.stopped:
            self._print(f"stopped at step {run.step}: {run.stopped}")

    # -- drawing ----------------------------------------------------------------------------------

    @property
    def _is_drawn(self) -> bool:
        """Whether the picture can be redrawn in place."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    @property
    def _pause(self) -> float:
        return _REDRAW if self._is_drawn else _LINE

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _draw(self, run: Run, rate: float) -> RenderableType:
        """The bar, the numbers, and the last and the best evaluation."""
        total = max(run.plan.steps, 1)
        bar = Table.grid(padding=(0, 1))
        count = f"step {run.step}/{run.plan.steps}  epoch {run.epoch + 1}/{run.plan.epochs}"
        bar.add_row(
            ProgressBar(total=total, completed=min(run.step, total), width=30),
            Text(percent(run.step / total)),
            Text(count),
        )
        lines = [Text(_join(self._facts(run, rate)))]
        for word, found in (("last", self._last), ("best", self._best)):
            if found is not None:
                text = f"{word}: {_numbers(found.numbers)} (step {found.step})"
                lines.append(Text(text, style="dim"))
        for line in lines:  # one that wraps would make the picture jump
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(bar, *lines)

    def _facts(self, run: Run, rate: float) -> dict[str, str]:
        """The numbers of the moment; those that are not known yet are left out."""
        assert self._speed is not None
        speed, memory = self._speed, self._memory()
        facts = {
            "loss": (self._loss, f"{self._loss:.4g}"),
            "learning rate": (rate, f"{rate:.3g}"),
            "samples/s": (speed.samples_per_second, f"{speed.samples_per_second:,.0f}"),
            "waiting for data": (speed.data_wait, f"{100 * speed.data_wait:.0f} %"),
            "memory": (memory, show_bytes(memory) if math.isfinite(memory) else ""),
            "time left": (left := speed.time_left(run.steps_left), show_time(left)),
        }
        return {name: text for name, (number, text) in facts.items() if math.isfinite(number)}


def _join(facts: Mapping[str, str]) -> str:
    return "  ".join(f"{name} {text}" for name, text in facts.items())


def _numbers(numbers: Mapping[str, float]) -> str:
    """
    >>> _numbers({"val_loss": 0.25, "val_accuracy": 0.9})
    'val_loss 0.25, val_accuracy 0.9'
    """
    return ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
