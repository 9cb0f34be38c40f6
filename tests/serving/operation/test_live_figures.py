"""Live figures: numbers of the last minutes against a clock that is given."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import ModelNotFound, ServerOverloaded
from onward.serving.observer import RequestTimes
from onward.serving.operation.live_figures import SLOTS, WIDTH, WINDOW, LiveFigures


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def figures(clock: Clock) -> LiveFigures:
    return LiveFigures(clock)


def answer(figures: LiveFigures, latency: float, model: str = "m") -> None:
    figures.on_request(model, "1", "", RequestTimes(latency / 2, 0, latency / 2, 0, 1), None)


def test_throughput_counts_slots_that_are_over(clock: Clock, figures: LiveFigures) -> None:
    for _ in range(30):
        answer(figures, 0.01)
    figures.on_request("m", "1", "", RequestTimes(), ServerOverloaded("full"))
    assert figures.snapshot(0)["series"]["throughput"][-1] == 0
    clock.now += WIDTH
    found = figures.snapshot(0)
    assert found["series"]["throughput"][-1] == 30 / WIDTH
    assert found["series"]["failures"][-1] == 1 / WIDTH
    assert found["total"]["throughput"] == pytest.approx(30 / (WINDOW * WIDTH))
    clock.now += WIDTH
    assert figures.snapshot(0)["series"]["throughput"][-2:] == [30 / WIDTH, 0]


def test_percentiles_are_close_to_the_exact_ones(clock: Clock, figures: LiveFigures) -> None:
    latencies = np.random.default_rng(0).lognormal(-5, 1, 5000)
    for latency in latencies.tolist():
        answer(figures, latency)
    clock.now += WIDTH
    found = figures.snapshot(0)
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
        exact = np.percentile(latencies, share)
        assert found["total"][name] == pytest.approx(exact, rel=0.06)
        assert found["series"][name][-1] == pytest.approx(exact, rel=0.06)


def test_models_are_counted_one_by_one(clock: Clock, figures: LiveFigures) -> None:
    answer(figures, 0.001, "fast")
    answer(figures, 1.0, "slow")
    figures.on_batch("slow", "1", 2, 6, 0.5)
    figures.on_batch("slow", "1", 2, 2, 0.5)
    clock.now += WIDTH
    found = figures.snapshot(0)
    fast, slow = found["models"]["fast", "1"], found["models"]["slow", "1"]
    assert fast["p99"] == pytest.approx(0.001, rel=0.05)
    assert slow["p50"] == pytest.approx(1.0, rel=0.05)
    assert (fast["rows"], slow["rows"]) == (None, 4)
    assert figures.snapshot(0, ("slow", "1"))["series"]["rows"][-1] == 4
    assert figures.snapshot(0, ("fast", "1"))["series"]["rows"][-1] is None


def test_queue_is_the_sum_over_models_and_lasts(clock: Clock, figures: LiveFigures) -> None:
    figures.on_queue("a", "1", 5)
    figures.on_queue("b", "1", 7)
    figures.on_queue("a", "1", 2)
    clock.now += WIDTH
    found = figures.snapshot(0)
    assert found["total"]["queue"] == 9 and found["models"]["a", "1"]["queue"] == 2
    assert found["series"]["queue"][-1] == 12  # the longest of the slot


def test_old_slots_are_forgotten(clock: Clock, figures: LiveFigures) -> None:
    answer(figures, 0.1)
    clock.now += WIDTH * (WINDOW + 1)
    found = figures.snapshot(0)
    assert found["total"]["throughput"] == 0 and found["total"]["p50"] is None
    assert sum(found["series"]["throughput"]) == 1 / WIDTH
    clock.now += WIDTH * SLOTS
    assert sum(figures.snapshot(0)["series"]["throughput"]) == 0


def test_memory_is_kept_for_each_slot(clock: Clock, figures: LiveFigures) -> None:
    figures.snapshot(100)
    clock.now += WIDTH
    found = figures.snapshot(300)
    assert found["memory"] == 300 and found["memory_series"][-2:] == [100, 300]
    assert found["up_seconds"] == WIDTH


def test_memory_of_the_figures_is_bounded(clock: Clock, figures: LiveFigures) -> None:
    for n in range(2000):
        answer(figures, 0.01, f"model{n}")
        figures.on_request(f"x{n}", "1", "", RequestTimes(), ModelNotFound("no"))
    models = figures.snapshot(0)["models"]
    assert len(models) == 512 and ("model0", "1") in models
    for _ in range(1000):
        clock.now += WIDTH
        answer(figures, 0.01)
    assert len(figures.snapshot(0)["series"]["queue"]) == SLOTS - 1
