"""R9, the short tier: a process of two is killed within the run and after it; more are slow."""

from __future__ import annotations

import pytest

from conformance.reliability import killed_workers

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("times", "steps"), [(2, 20), pytest.param(4, 40, marks=pytest.mark.slow)], ids=["two", "four"]
)
def test_run_with_killed_workers_is_bit_identical(times: int, steps: int) -> None:
    tally = killed_workers.kill_workers(times, steps=steps, seed=1)
    assert not tally.fault, tally.line()
    assert len(tally.steps) == times
    assert tally.line().endswith("the same bits")
