"""time_in_turns: the models take turns, and a clock that tests hold shows what is counted."""

from __future__ import annotations

import numpy as np

from onward.compress.timing import time_in_turns
from tests.models import mlp

FEEDS = {"x": np.zeros((2, 4), np.float32)}


class Clock:
    """A clock that advances by the same step at each reading."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.readings = 0.0, step, 0

    def __call__(self) -> float:
        self.readings += 1
        self.now += self.step
        return self.now


def test_every_model_has_the_median_of_its_turns() -> None:
    clock = Clock(0.5)
    times = time_in_turns({"a": mlp(), "b": mlp()}, FEEDS, clock=clock, seconds=1.0)
    assert times == {"a": 0.5, "b": 0.5}  # a turn of one run lies between two readings
    assert clock.readings == 2 * (2 + 2 * 5)  # a warm-up and five turns each


def test_a_fast_model_runs_often_in_a_turn() -> None:
    times = time_in_turns({"a": mlp()}, FEEDS, clock=Clock(1e-4), seconds=1e-3)
    assert times["a"] < 1e-5  # 20 runs in a turn of 0.1 ms


def test_models_may_have_providers_of_their_own() -> None:
    providers = {"a": ["CPUExecutionProvider"], "b": ["ReferenceExecutionProvider"]}
    times = time_in_turns(
        {"a": mlp(), "b": mlp()}, FEEDS, providers=providers, clock=Clock(1.0), seconds=1.0
    )
    assert set(times) == {"a", "b"}
