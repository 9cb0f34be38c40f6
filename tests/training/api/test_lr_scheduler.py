"""Schedulers: the rate follows the optimizer's steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import OptionError
from onward.optimizers.schedules import Cosine, WarmUp
from onward.training.api import CheckpointState, LinearLRScheduler, Scheduler
from tests.training.api.made import Folder, batch


def test_linear_schedule_warms_up_and_decays(whole: Folder) -> None:
    _, module, optimizer = whole.open()
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.4)
    rates = [optimizer.get_learning_rate()]
    for _ in range(7):
        module(*batch())
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    assert rates == pytest.approx([0.0, 0.2, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0])


def test_schedule_depends_only_on_optimizer_steps(whole: Folder) -> None:
    optimizer = whole.open()[2]
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.4)
    scheduler.step()
    scheduler.step()
    assert optimizer.get_learning_rate() == 0.0


def test_schedule_resumes_from_a_checkpoint(whole: Folder, tmp_path: Path) -> None:
    state, module, optimizer = whole.open()
    scheduler = LinearLRScheduler(optimizer, 0, 10, 0.5)
    for _ in range(3):
        module(*batch())
        optimizer.step()
        scheduler.step()
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    again = whole.open(tmp_path / "saved")[2]
    assert again.get_learning_rate() == pytest.approx(0.35)
    LinearLRScheduler(again, 0, 10, 0.5)
    assert again.get_learning_rate() == pytest.approx(0.35)


def test_scheduler_takes_any_schedule(whole: Folder) -> None:
    _, module, optimizer = whole.open()
    optimizer.set_learning_rate(0.2)
    schedule = WarmUp(steps=2, schedule=Cosine(steps=4))
    scheduler = Scheduler(optimizer, schedule)
    rates = [optimizer.get_learning_rate()]
    for _ in range(4):
        module(*batch())
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    assert rates == pytest.approx([schedule.rate(step, 0.2) for step in range(5)])
    Scheduler(optimizer, Cosine(steps=8), initial_lr=1.0)
    assert optimizer.get_learning_rate() == pytest.approx(0.5)


def test_invalid_schedule_is_refused(whole: Folder) -> None:
    with pytest.raises(
        OptionError, match=r"schedule must be one of onward.optimizers.schedules, not flo"
    ):
        Scheduler(whole.open()[2], 0.1)  # type: ignore[arg-type]
