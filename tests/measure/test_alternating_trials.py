"""Candidates that are measured in turns, each within its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import DeadlineExceeded
from onward.measure import alternating_trials
from onward.measure.alternating_trials import MeasuredCandidate, measure_in_turns
from onward.measure.tuning.trials import CallTimes, Candidate, FirstRun


class SlowTrial:
    """A trial that runs into its limit in its third turn."""

    def __init__(self, *arguments: Any) -> None:
        self.turns, self.closed = 0, 0

    def __enter__(self) -> SlowTrial:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed += 1

    def close(self) -> None:
        self.closed += 1

    def open(self, timeout: float) -> FirstRun:
        return FirstRun(0.5, [np.ones(1)])

    def measure(self, seconds: float, timeout: float) -> CallTimes:
        self.turns += 1
        if self.turns > 3:
            raise DeadlineExceeded("slow")
        return CallTimes([0.25], 1)


def test_figures_before_the_limit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternating_trials, "Trial", SlowTrial)
    measured = MeasuredCandidate(Path("m.onnx"), Candidate("CPUExecutionProvider"), {})
    assert not measure_in_turns([measured], 1.0, 30.0)
    assert measured.timing is not None and measured.timing.times == [0.25, 0.25]
    assert measured.error == "not done within its limit of 30 s"
