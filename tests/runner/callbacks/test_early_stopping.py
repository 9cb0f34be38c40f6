"""Early stopping: patience, direction, NaN, and a resumed run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from onward.errors import OptionError
from onward.runner.callbacks.early_stopping import EarlyStopping
from tests.runner.callbacks.fake_run import evaluate, fake_run


def stops_after(run: Any, callback: EarlyStopping, numbers: list[float]) -> int | None:
    """The number of evaluations after which the run is asked to stop."""
    for count, number in enumerate(numbers, 1):
        evaluate(run, callback, **{run.plan.monitor: number})
        if run.stopped:
            return count
    return None


@pytest.mark.parametrize(
    ("patience", "numbers", "expected"),
    [
        (2, [0.5, 0.6, 0.6, 0.5], 4),
        (2, [0.5, 0.4, 0.6, 0.5, 0.7], None),
        (1, [0.5, 0.5], 2),
        (2, [math.nan, math.nan], 2),
        (2, [math.nan, 0.1, math.nan, 0.2], None),
    ],
)
def test_stops_without_improvement(
    tmp_path: Path, patience: int, numbers: list[float], expected: int | None
) -> None:
    run = fake_run(tmp_path)
    assert stops_after(run, EarlyStopping(patience), numbers) == expected


def test_reason_and_lower_numbers(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    run.plan.monitor, run.plan.higher_is_better = "val_loss", False
    assert stops_after(run, EarlyStopping(3), [1.0, 0.9, 1.0, 1.0, 0.9]) == 5
    assert run.stopped == "no improvement of val_loss in 3 evaluations"


def test_small_changes_do_not_count(tmp_path: Path) -> None:
    assert stops_after(fake_run(tmp_path), EarlyStopping(1, least=0.1), [0.5, 0.55]) == 2


def test_resumed_run_keeps_counting(tmp_path: Path) -> None:
    first = EarlyStopping(3)
    assert stops_after(fake_run(tmp_path), first, [0.9, 0.8, 0.8]) is None
    second = EarlyStopping(3)
    second.restore(first.state())
    assert stops_after(fake_run(tmp_path), second, [0.85]) == 1


def test_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"EarlyStopping\.patience"):
        EarlyStopping(0)
    with pytest.raises(OptionError, match="no number 'val_accuracy' to stop early by"):
        evaluate(fake_run(tmp_path), EarlyStopping(1), val_acuracy=0.5)
