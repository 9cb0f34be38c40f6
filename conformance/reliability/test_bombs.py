"""R3, the short tier: one bomb of each kind."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import bombs

FEW = ["loop", "one matmul", "doubling tensors", "constant of shape", "recursive function"]


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds the memory cap")
def test_bombs_end_at_the_deadline_with_the_memory_cap_held() -> None:
    rows = bombs.go_off(FEW, isolated=True, provider="CPUExecutionProvider")
    by = {row["bomb"]: row["ended_by"] for row in rows}
    assert by["loop"] == by["one matmul"] == "DeadlineExceeded"
    assert by["doubling tensors"] == by["constant of shape"] == "MemoryLimitExceeded"
    assert by["recursive function"] in ("InvalidModel", "LimitExceeded", "UnsafeModel")
    cap = bombs.baseline("CPUExecutionProvider") + bombs.CAP + bombs.SLACK
    assert all(row["peak"] <= cap for row in rows), rows


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "ReferenceExecutionProvider"])
def test_loops_end_in_the_callers_process(provider: str) -> None:
    [row] = bombs.go_off(["nested loops"], isolated=False, provider=provider)
    assert row["ended_by"] == "DeadlineExceeded"


@pytest.mark.parametrize("name", list(bombs.BOMBS))
def test_every_bomb_is_a_model(name: str) -> None:
    bomb = bombs.BOMBS[name]
    assert {value.name for value in bomb.model().graph.input} == set(bomb.feeds)


def test_verdict_counts_late_and_large_runs() -> None:
    good = {"ended_by": "DeadlineExceeded", "late": 0.1, "peak": 1}
    rows = [good, {**good, "late": 9.0}, {**good, "ended_by": "nobody"}, {**good, "peak": 1 << 40}]
    wanted = "2/4 ended at the deadline, latest +9.00 s, memory cap held 3/4"
    assert bombs.verdict(rows, base=0) == wanted
