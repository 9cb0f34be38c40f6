"""batch_delay: a lone client never waits, bursts wait for one another where it pays."""

from __future__ import annotations

import pytest

from onward.serving.batch_delay import FixedDelay, LatencyLine, LearnedDelay


def learned(fixed: float, per_row: float, gap: float) -> tuple[LearnedDelay, float]:
    """A delay that has seen runs of this latency and arrivals of this gap, and the time."""
    delay = LearnedDelay()
    for rows in (1, 2, 4, 8) * 8:
        delay.observe_run(rows, fixed + per_row * rows)
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
    delay.observe_run(0, 1.0)
    assert delay.latency.fixed == 0.0
