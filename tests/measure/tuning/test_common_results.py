"""Processes that measure together: all have the figures of the slowest, and decide alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from onward.errors import OptionError, ProviderError
from onward.measure.tuning.common_results import alone, run_together
from onward.measure.tuning.race import race
from onward.measure.tuning.trials import CallTimes, Candidate, FirstRun
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import Row

A, B, C = (Candidate(f"{name}ExecutionProvider") for name in "ABC")


class Group:
    """Threads that gather values, each the caller of `gather` of its rank."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._values: list[Any] = [None] * size

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


def run_group(size: int, function: Callable[[int, Any], Any]) -> list[Any]:
    group, found = Group(size), [None] * size

    def call(rank: int) -> None:
        found[rank] = function(rank, lambda value: group.gather(rank, value))

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class TimedTrial:
    """A trial that takes what a table says; None: it fails."""

    def __init__(self, median: float | None) -> None:
        self._median = median

    def __enter__(self) -> TimedTrial:
        return self

    def __exit__(self, *_: object) -> None: ...

    def open(self, timeout: float) -> FirstRun:
        if self._median is None:
            raise ProviderError("it has no such operator\nuse another")
        return FirstRun(self._median, [])

    def measure(self, seconds: float, *, timeout: float) -> CallTimes:
        assert self._median is not None
        return CallTimes([self._median] * 3, 100)

    def close(self) -> None: ...


def race_together(*medians: dict[Candidate, float | None]) -> list[list[Row]]:
    def run(rank: int, gather: Any) -> list[Row]:
        return race(
            [A, B, C],
            lambda candidate: TimedTrial(medians[rank][candidate]),
            lambda ours, theirs: None,
            TuningOptions(),
            gather=gather,
        )

    return run_group(len(medians), run)


def test_the_engine_whose_slowest_process_is_the_fastest_wins() -> None:
    one, other = race_together({A: 1.0, B: 1.5, C: 1.4}, {A: 2.0, B: 1.6, C: 1.9})
    assert one == other
    assert [(row.candidate, row.median) for row in one] == [(B, 1.6), (C, 1.9), (A, 2.0)]


def test_an_engine_that_fails_in_one_process_is_excluded_in_all() -> None:
    one, other = race_together({A: 3.0, B: 1.0, C: 2.0}, {A: 3.0, B: None, C: 2.0})
    assert one == other
    assert [row.candidate for row in one] == [C, A, B]
    assert one[-1].error == "process 1: it has no such operator"


@pytest.mark.parametrize("error", [OptionError("no"), OSError(28, "No space left on device")])
def test_what_one_process_cannot_do_no_process_goes_on_with(error: Exception) -> None:
    def fail(rank: int, gather: Any) -> str:
        def work() -> str:
            if rank == 1:
                raise error
            return "done"

        with pytest.raises(ProviderError) as caught:
            run_together(work, gather)
        return str(caught.value)

    one, other = run_group(2, fail)
    assert one == other and one.startswith("process 1: ") and str(error) in one


def test_a_process_alone_raises_its_own_error() -> None:
    def work() -> None:
        raise OptionError("no")

    with pytest.raises(OptionError, match="no"):
        run_together(work, alone)
