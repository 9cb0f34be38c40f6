"""Retention: the newest and the best saves; its settings are tested by test_folder."""

from __future__ import annotations

from dataclasses import dataclass

from onward.checkpoints.retention import Retention


@dataclass(frozen=True)
class Rated:
    serial: int
    metric: float | None


SAVES = [Rated(n, metric) for n, metric in enumerate([3.0, 1.0, None, 1.0, 2.0])]


def test_newest_and_best_are_kept() -> None:
    assert [save.serial for save in Retention(keep=1, keep_best=1).kept(SAVES)] == [3, 4]
    assert [save.serial for save in Retention(keep=1, keep_best=0).kept(SAVES)] == [4]
    assert [save.serial for save in Retention(1, 2, "higher").kept(SAVES)] == [0, 4]
    assert Retention(keep=None).kept(SAVES) == SAVES


def test_of_equally_good_saves_the_newer_comes_first() -> None:
    assert [save.serial for save in Retention().by_metric(SAVES)] == [3, 1, 4, 0]


def test_due_counts_steps() -> None:
    assert [step for step in range(7) if Retention(every=3).due(step)] == [3, 6]
