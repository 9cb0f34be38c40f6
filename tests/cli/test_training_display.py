"""The display of a run: a live picture in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from onward.cli.training_display import TrainingDisplay
from onward.runner.data.batches import DataBatch
from onward.runner.events import Evaluation, StepRecord


class Losses(dict[str, Any]):
    """Results that count how often the loss is read."""

    reads = 0

    def __getitem__(self, name: str) -> Any:
        Losses.reads += 1
        return np.float32(0.5)


class FakeRun(SimpleNamespace):
    @property
    def steps_left(self) -> int:
        return int(self.plan.steps - self.step)


def make_run(steps: int = 100) -> Any:
    Losses.reads = 0
    run = FakeRun(
        config=SimpleNamespace(gradient_accumulation_steps=1),
        plan=SimpleNamespace(steps=steps, epochs=2, training=SimpleNamespace(waited=0.0)),
        session=SimpleNamespace(learning_rate=0.1),
        step=0,
        epoch=0,
        best=None,
        stopped="",
        now=0.0,
    )
    run.clock = lambda: run.now
    return run


def make_display(*, terminal: bool, **options: Any) -> tuple[TrainingDisplay, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, **options)
    return TrainingDisplay(console, memory=lambda: 3.0 * 2**20), text


def make_steps(run: Any, display: TrainingDisplay, count: int, seconds: float) -> None:
    for _ in range(count):
        run.step += 1
        run.now += seconds
        run.plan.training.waited += seconds / 4
        batch = DataBatch({}, np.arange(8))
        display.on_step(run, StepRecord(run.step, 0, batch, Losses(), 0.1))


def test_plain_lines_where_there_is_no_terminal() -> None:
    display, text = make_display(terminal=False)
    run = make_run()
    with display:
        display.on_start(run)
        make_steps(run, display, 40, 1.0)
        display.on_evaluate(run, Evaluation(40, 0, {"val_accuracy": 0.75}, is_best=True))
        run.stopped = "no improvement of val_accuracy in 3 evaluations"
        display.on_end(run)
    assert text.getvalue().splitlines() == [
        "step 30/100: loss 0.5  learning rate 0.1  samples/s 8  waiting for data 25 %  "
        "memory 3.0 MiB  time left 1:10",
        "epoch 1, step 40: val_accuracy 0.75  (best)",
        "stopped at step 40: no improvement of val_accuracy in 3 evaluations",
    ]
    assert Losses.reads == 1  # only for the line


def test_terminal_shows_progress_numbers_and_evaluations() -> None:
    display, text = make_display(terminal=True)
    run = make_run()
    display.on_start(run)
    make_steps(run, display, 50, 1.0)
    display.on_evaluate(run, Evaluation(50, 0, {"val_loss": 0.25}, is_best=True))
    make_steps(run, display, 50, 1.0)
    display.on_end(run)
    shown = text.getvalue()
    assert "step 100/100  epoch 1/2" in shown and "100 %" in shown
    assert "epoch 1, step 50: val_loss 0.25  (best)" in shown
    assert "best: val_loss 0.25 (step 50)" in shown
    assert "samples/s 8  waiting for data 25 %" in shown


def test_fast_steps_are_drawn_five_times_a_second() -> None:
    display, _ = make_display(terminal=True)
    run = make_run(10_000)
    display.on_start(run)
    make_steps(run, display, 1000, 0.001)
    assert 4 <= Losses.reads <= 5
    display.close()


@pytest.mark.parametrize("terminal", [True, False])
def test_exception_restores_the_terminal(terminal: bool) -> None:
    display, text = make_display(terminal=terminal)
    with pytest.raises(KeyboardInterrupt), display:
        display.on_start(make_run())
        raise KeyboardInterrupt
    shown = text.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == terminal  # the cursor
    display.close()


def test_plain_lines_have_no_control_characters() -> None:
    display, text = make_display(terminal=False)
    run = make_run(steps=3)
    display.on_start(run)
    make_steps(run, display, 3, 1.0)
    display.on_end(run)
    shown = text.getvalue()
    assert shown.isascii() and "\x1b" not in shown and "\r" not in shown
    assert shown.startswith("step 3/3: ")  # the last step always has a line


def test_no_color_and_ascii_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    display = TrainingDisplay(Console(file=text, force_terminal=True, width=100))
    run = make_run()
    display.on_start(run)
    make_steps(run, display, 10, 1.0)
    display.on_end(run)
    text.flush()
    shown = text.buffer.getvalue()  # type: ignore[attr-defined]
    assert b"step 10/100" in shown
    assert b"\x1b[3" not in shown.replace(b"\x1b[3A", b"")  # no colours


def test_resumed_run_shows_its_best_evaluation() -> None:
    display, text = make_display(terminal=True)
    run = make_run()
    run.best = Evaluation(7, 0, {"val_loss": 0.125}, is_best=True)
    display.on_start(run)
    display.close()
    assert "best: val_loss 0.125 (step 7)" in text.getvalue()


def test_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    display, text = make_display(terminal=True)
    run = make_run(steps=3)
    display.on_start(run)
    make_steps(run, display, 3, 1.0)
    display.on_end(run)
    assert text.getvalue().startswith("step 3/3: ") and "\x1b" not in text.getvalue()
