"""The demo's lesson: the network learns, shows it, and can be stopped."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from onward.cli import digits_training
from onward.cli.digits_training import Lesson, learn
from onward.runner.digits import TRAIN, build_network, load_digits


def taught(epochs: int, **console: Any) -> tuple[Lesson, str]:
    screen = io.StringIO()
    images, labels = load_digits()
    shown = Console(file=screen, width=100, highlight=False, **console)
    return learn(build_network(), images, labels, epochs, 0, shown), screen.getvalue()


def test_the_loss_falls_and_the_accuracy_rises() -> None:
    lesson, told = taught(2)
    curve = lesson.curve
    assert len(curve.losses) == lesson.session.steps == 2 * (TRAIN // digits_training.SIZE)
    assert np.mean(curve.losses[-10:]) < 0.7 * np.mean(curve.losses[:10])
    (start, before), (half, _), (end, after) = curve.accuracies
    assert (start, half, end) == (0, 37, 74) and after > before + 0.4
    assert not lesson.ended and lesson.seconds > 0
    assert "1/2" in told and "2/2" in told and "held out" in told and "\x1b" not in told


def test_a_terminal_sees_a_bar_that_moves() -> None:
    _, told = taught(1, force_terminal=True)
    assert "loss 2." in told and "\x1b" in told and "1/1" in told


def test_the_same_seed_learns_the_same() -> None:
    (one, _), (other, _) = taught(1), taught(1)
    assert one.curve == other.curve


def test_ctrl_c_ends_it_and_keeps_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def tired(*arguments: Any) -> Any:
        for count, batch in enumerate(batches(*arguments)):
            if count == 5:
                raise KeyboardInterrupt
            yield batch

    batches = digits_training.batches
    monkeypatch.setattr(digits_training, "batches", tired)
    lesson, _ = taught(3)
    assert lesson.ended and lesson.session.steps == len(lesson.curve.losses) == 5
