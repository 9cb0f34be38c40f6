"""R9, the short tier: three kills of a process of two."""

from __future__ import annotations

from conformance.reliability import killed_workers


def test_run_with_killed_workers_is_bit_identical() -> None:
    tally = killed_workers.kill_workers(3, steps=40, seed=1)
    assert not tally.fault, tally.line()
    assert len(tally.steps) == 3
    assert tally.line().endswith("the same bits")
