"""batch_delay: a lone client never waits, bursts wait for one another where it pays."""

from __future__ import annotations

import pytest

from onward.serving.batching.batch_delay import FixedDelay, LatencyLine, LearnedDelay


def learned(fixed: float, per_row: float, gap: float) -> tuple[LearnedDelay, float]:
    """A delay that has seen runs of this latency and arrivals of this gap, and the time."""
    delay = LearnedDelay()
    for rows in (1, 2, 4, 8) * 8:
        delay.observe_run(rows, rows, fixed + per_row * rows, -100.0)
    now = 0.0
    for _ in range(100):
        now += gap
        delay.observe_arrival(now)
    return delay, now


def test_a_fixed_delay_counts_from_the_oldest_request() -> None:
    assert FixedDelay(0.5).start_time(1, 10.0, 10.2) == 10.5


@pytest.mark.parametrize(("fixed", "per_row"), [(0.01, 0.002), (0.0, 0.003), (0.02, 0.0)])
def test_latency_is_split_into_a_fixed_part_and_a_part_per_row(
    fixed: float, per_row: float
) -> None:
    line = LatencyLine()
    for rows in (1, 3, 8, 2) * 5:
        line.observe(rows, fixed + per_row * rows)
    assert line.fixed == pytest.approx(fixed, abs=1e-9)
    assert line.per_row == pytest.approx(per_row, abs=1e-9)


def test_a_single_batch_size_shows_no_fixed_part() -> None:
    line = LatencyLine()
    for _ in range(5):
        line.observe(4, 0.02)
    assert (line.fixed, line.per_row) == (0.0, pytest.approx(0.005))


def test_latency_follows_a_model_that_becomes_slower() -> None:
    line = LatencyLine()
    for fixed in (0.01, 0.1):
        for rows in (1, 2, 4) * 100:
            line.observe(rows, fixed + 0.001 * rows)
    assert line.fixed == pytest.approx(0.1, rel=0.1)


def test_one_request_of_an_unusual_shape_delays_no_others() -> None:
    line = LatencyLine()
    for rows in (1, 1, 2, 1) * 6:
        line.observe(rows, 1e-4)
    line.observe(1, 0.05)
    for rows in (16, 8, 4):
        line.observe(rows, 2e-4)
        assert line.fixed < 2e-4


def test_a_request_without_history_starts_at_once() -> None:
    delay = LearnedDelay()
    delay.observe_arrival(1.0)
    assert delay.start_time(1, 1.0, 1.0) == 1.0


def test_a_lone_client_never_waits() -> None:
    delay, now = learned(fixed=0.02, per_row=0.001, gap=0.022)
    assert delay.start_time(1, now, now) == now


def test_a_burst_waits_for_the_next_request() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.002)
    start = delay.start_time(1, now, now)
    assert now < start <= now + 0.02


def test_a_batch_that_is_large_enough_starts() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.002)
    assert delay.start_time(3, now, now) > now
    assert delay.start_time(8, now, now) == now  # 8 (0.002 + 0.0005) > 0.02 - 0.002


def test_a_late_request_is_not_waited_for() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.002)
    assert delay.start_time(1, now, now + 0.005) <= now + 0.005


def test_a_fast_model_never_waits() -> None:
    delay, now = learned(fixed=0.0005, per_row=0.00001, gap=0.00001)
    assert delay.start_time(1, now, now) == now


def test_a_pause_between_bursts_hardly_changes_the_gap() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.001)
    delay.observe_arrival(now + 0.1)
    assert delay.gap < 0.002


def test_an_empty_batch_teaches_nothing() -> None:
    delay = LearnedDelay()
    delay.observe_run(1, 0, 1.0, 0.0)
    assert delay.latency.fixed == 0.0


def cycle(delay: LearnedDelay, now: float, answered: int, returning: int, after: float) -> float:
    """A batch is answered, and some of its clients ask again: the time after that."""
    delay.observe_run(answered, answered, 0.02 + 0.0005 * answered, now)
    for number in range(returning):
        delay.observe_arrival(now + after * (number + 1) / returning)
    return now + 0.1


def test_clients_that_return_at_once_are_waited_for() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.03)
    for _ in range(30):
        now = cycle(delay, now, 8, 8, after=0.001)
    delay.observe_run(8, 8, 0.024, now)
    until = delay.start_time(8, now - 0.02, now)  # 8 others wait already
    assert until == pytest.approx(now + 0.25 * 0.02, rel=0.01)
    for _ in range(8):
        delay.observe_arrival(now + 0.001)
    assert delay.start_time(16, now - 0.02, now + 0.001) == now + 0.001  # all are there
    assert delay.start_time(8, now - 0.02, now + 0.01) <= now + 0.01  # or it has been too long


@pytest.mark.parametrize(("returning", "waiting"), [(0, 8), (8, 200)])
def test_clients_are_not_waited_for_if_few_return_or_many_wait(
    returning: int, waiting: int
) -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.03)
    for _ in range(30):
        now = cycle(delay, now, 8, returning, after=0.001)
    delay.observe_run(8, 8, 0.024, now)
    assert delay.start_time(waiting, now - 0.02, now) == now


def test_a_lone_client_that_returns_at_once_does_not_wait() -> None:
    delay, now = learned(fixed=0.02, per_row=0.0005, gap=0.021)
    for _ in range(30):
        now = cycle(delay, now, 1, 1, after=0.0001)
    delay.observe_run(1, 1, 0.0205, now)
    delay.observe_arrival(now + 0.0001)
    assert delay.start_time(1, now + 0.0001, now + 0.0001) == now + 0.0001
