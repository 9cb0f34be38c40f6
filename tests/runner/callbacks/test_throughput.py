"""Throughput over the last steps, with a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from onward.runner.callbacks import throughput
from onward.runner.callbacks.throughput import MemoryReader, Throughput


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def started(window: int = 50) -> tuple[Throughput, Time]:
    time = Time()
    speed = Throughput(time, window)
    speed.start(waited=5.0)  # of an earlier process
    return speed, time


def test_nothing_is_known_before_the_first_step() -> None:
    speed, _ = started()
    assert math.isnan(speed.samples_per_second)
    assert math.isnan(speed.data_wait) and math.isnan(speed.time_left(3))


def test_only_the_last_steps_count() -> None:
    speed, time = started(window=2)
    for seconds in (10.0, 1.0, 1.0):
        time.now += seconds
        speed.add(samples=4, waited=5.0)
    assert speed.samples_per_second == 4.0
    assert speed.time_left(7) == 7.0


def test_share_of_waiting_for_data() -> None:
    speed, time = started()
    time.now = 4.0
    speed.add(samples=4, waited=8.0)
    assert speed.data_wait == 0.75


def test_evaluations_slow_nothing_but_the_time_left() -> None:
    speed, time = started()
    for _ in range(4):
        time.now += 1.0
        speed.add(samples=4, waited=5.0)
    time.now += 4.0
    speed.exclude(4.0)
    time.now += 1.0
    speed.add(samples=4, waited=5.0)
    assert speed.samples_per_second == 4.0
    assert speed.time_left(10) == pytest.approx(10 * (1 + 4 / 5))


def test_memory_is_read_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = MemoryReader(clock=iter([0.0, 0.5, 1.5]).__next__)
    monkeypatch.setattr(throughput.resident_memory, "MEASURABLE", False)
    assert math.isnan(reader.now())
    sizes = iter([4096, 8192])
    monkeypatch.setattr(throughput.resident_memory, "MEASURABLE", True)
    monkeypatch.setattr(throughput.resident_memory, "resident", lambda: next(sizes))
    assert [reader.now() for _ in range(3)] == [4096, 4096, 8192]
