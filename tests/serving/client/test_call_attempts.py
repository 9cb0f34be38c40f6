"""call_attempts: retries, waits, deadlines and servers, step by step, on a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import RequestExpired, ServerOverloaded, ServerUnreachable
from onward.serving.client.call_attempts import (
    ExchangeFailed,
    RetryPolicy,
    Send,
    Steps,
    Wait,
    run_call,
)
from onward.serving.client.client_protocol import ClientCall, HttpRequest, HttpResponse, check
from onward.serving.client.server_choice import ServerChoice, parse_url

OK = HttpResponse(200, {}, b"")
BUSY = HttpResponse(503, {"retry-after": "2"}, b'{"error": "the queue is full"}')
LOADING = HttpResponse(503, {}, b'{"error": "loading"}')
REFUSED = ExchangeFailed("refused", was_sent=False)
DROPPED = ExchangeFailed("dropped", was_sent=True)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def read(response: HttpResponse) -> int:
    check(response)
    return response.status


def steps_of(
    clock: Clock, *, servers: int = 1, seconds: float | None = 60.0, may_repeat: bool = True
) -> tuple[Steps[int], ServerChoice]:
    choice = ServerChoice([parse_url(f"http://host{number}") for number in range(servers)])
    call = ClientCall(lambda left: HttpRequest("GET", f"/{left}"), read, may_repeat)
    return run_call(call, choice, RetryPolicy(), seconds, clock, lambda: 0.5), choice


def play(steps: Steps[int], outcomes: list[Any], clock: Clock) -> tuple[list[Any], int | None]:
    """Give outcomes to the steps; what was sent and waited for, and the result."""
    seen: list[Any] = []
    step, left = next(steps), list(outcomes)
    while True:
        seen.append(step)
        outcome = None
        if isinstance(step, Wait):
            clock.now += step.seconds
        else:
            outcome = left.pop(0)
        try:
            step = steps.send(outcome)
        except StopIteration as end:
            assert not left
            return seen, end.value


def test_an_answer_ends_the_call() -> None:
    steps, choice = steps_of(Clock())
    seen, result = play(steps, [OK], Clock())
    assert result == 200
    assert seen == [Send(choice.servers[0], HttpRequest("GET", "/60.0"), 60.0)]
    assert choice.servers[0].outstanding == 0


def test_a_busy_server_is_asked_again_after_the_time_that_it_names() -> None:
    clock = Clock()
    steps, _ = steps_of(clock)
    seen, result = play(steps, [BUSY, LOADING, OK], clock)
    assert result == 200
    waits = [step.seconds for step in seen if isinstance(step, Wait)]
    assert waits == [pytest.approx(2.025), pytest.approx(0.075)]
    assert seen[-1].seconds == pytest.approx(60 - sum(waits))


def test_retries_end() -> None:
    clock = Clock()
    steps, _ = steps_of(clock)
    with pytest.raises(ServerOverloaded, match="full"):
        play(steps, [BUSY] * 4, clock)


def test_no_wait_passes_the_deadline() -> None:
    clock = Clock()
    steps, _ = steps_of(clock, seconds=2.0)
    with pytest.raises(ServerOverloaded, match="full"):
        play(steps, [BUSY], clock)
    assert clock.now == 100.0


def test_another_server_is_tried_at_once() -> None:
    clock = Clock()
    steps, choice = steps_of(clock, servers=2)
    seen, result = play(steps, [REFUSED, OK], clock)
    assert result == 200 and all(isinstance(step, Send) for step in seen)
    assert {step.server for step in seen} == set(choice.servers)
    assert sorted(each.failures for each in choice.servers) == [0, 1]


def test_a_lost_connection_is_tried_again() -> None:
    clock = Clock()
    steps, _ = steps_of(clock)
    seen, result = play(steps, [DROPPED, OK], clock)
    assert result == 200 and isinstance(seen[1], Wait)


def test_a_sequence_is_never_sent_twice() -> None:
    for outcome, kind in ((DROPPED, ServerUnreachable), (BUSY, ServerOverloaded)):
        steps, _ = steps_of(Clock(), servers=2, may_repeat=False)
        with pytest.raises(kind):
            play(steps, [outcome], Clock())


def test_a_sequence_is_sent_again_if_it_was_not_sent() -> None:
    steps, _ = steps_of(Clock(), servers=2, may_repeat=False)
    assert play(steps, [REFUSED, OK], Clock())[1] == 200


def test_an_unreachable_server_is_named() -> None:
    clock = Clock()
    steps, _ = steps_of(clock)
    with pytest.raises(ServerUnreachable, match=r"http://host0: refused\nis the server running"):
        play(steps, [REFUSED] * 4, clock)


def test_a_timeout_is_not_tried_again() -> None:
    steps, choice = steps_of(Clock(), servers=2, seconds=0.5)
    failed = ExchangeFailed("timed out", was_sent=True, timed_out=True)
    with pytest.raises(RequestExpired, match=r"did not answer within 0\.5 s"):
        play(steps, [failed], Clock())
    assert [each.failures for each in choice.servers] == [0, 0]


def test_a_call_that_is_dropped_is_not_outstanding() -> None:
    steps, choice = steps_of(Clock())
    next(steps)
    assert choice.servers[0].outstanding == 1
    steps.close()
    assert choice.servers[0].outstanding == 0


def test_waits_grow_and_are_random() -> None:
    policy = RetryPolicy(first_wait=1.0, longest_wait=5.0)
    assert [policy.wait(retry, None, 0.0) for retry in range(5)] == [0.5, 1.0, 2.0, 2.5, 2.5]
    assert policy.wait(0, None, 0.99) == pytest.approx(0.995)
    assert policy.wait(0, 7.0, 0.5) == pytest.approx(7.5)
