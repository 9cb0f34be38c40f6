"""A call from its first attempt to its answer: servers, retries and the deadline, without I/O.

    attempts = run_call(call, choice, RetryPolicy(), seconds, clock, random)
    step = next(attempts)               # Send(server, request, seconds) or Wait(seconds)
    step = attempts.send(outcome)       # of a Send: an HttpResponse or the error; of a Wait: None

The blocking and the asynchronous client do what the steps say.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from onward.errors import RequestExpired, ServerUnreachable, ServingError
from onward.serving.client.client_protocol import (
    ClientCall,
    HttpRequest,
    HttpResponse,
    seconds_to_wait,
)
from onward.serving.client.server_choice import ServerChoice, ServerEndpoint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a server, and give back its response or the ExchangeFailed."""

    server: ServerEndpoint
    request: HttpRequest
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for so many seconds."""

    seconds: float


class ExchangeFailed(Exception):
    """A request got no response. `was_sent`: the server may have seen it."""

    def __init__(self, text: str, *, was_sent: bool, timed_out: bool = False) -> None:
        super().__init__(text)
        self.was_sent, self.timed_out = was_sent, timed_out


Steps = Generator[Send | Wait, HttpResponse | ExchangeFailed | None, T]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a call is tried again."""

    retries: int = 3
    first_wait: float = 0.05  # seconds; doubled with each retry
    longest_wait: float = 2.0

    def wait(self, retry: int, retry_after: float | None, draw: float) -> float:
        """Seconds before a retry: what the server asks for, or a random part of the limit.

        `draw` is in [0, 1). Random, so that clients which failed together do not return together.
        """
        limit = min(self.longest_wait, self.first_wait * 2.0**retry)
        if retry_after is None:
            return limit * (0.5 + draw / 2)
        return retry_after + limit * draw


def run_call(
    call: ClientCall[T],
    choice: ServerChoice,
    policy: RetryPolicy,
    seconds: float | None,
    clock: Callable[[], float],
    random: Callable[[], float],
) -> Steps[T]:
    """The steps of a call; its result is what the call reads from the response."""
    end = None if seconds is None else clock() + seconds
    failed: set[ServerEndpoint] = set()
    retry = 0
    while True:
        left = None if end is None else end - clock()
        server = choice.pick(clock(), failed)
        outcome = yield from _attempt(call, choice, server, left, clock)
        if isinstance(outcome, HttpResponse) and not _is_refusal(outcome):
            return call.read(outcome)
        failed.add(server)
        pause = _pause_before_retry(call, outcome, policy, retry, random, len(choice.servers))
        if pause is None or (end is not None and clock() + pause >= end):
            if isinstance(outcome, HttpResponse):
                return call.read(outcome)  # raises
            raise _error(server, outcome, seconds) from outcome
        retry += 1
        if pause > 0:
            yield Wait(pause)


def _attempt(
    call: ClientCall[T],
    choice: ServerChoice,
    server: ServerEndpoint,
    left: float | None,
    clock: Callable[[], float],
) -> Generator[Send | Wait, HttpResponse | ExchangeFailed | None, HttpResponse | ExchangeFailed]:
    choice.on_start(server)
    try:
        outcome = yield Send(server, call.make(left), left)
    finally:
        choice.on_end(server)
    assert outcome is not None
    if isinstance(outcome, HttpResponse):
        choice.on_answer(server)
    elif not outcome.timed_out:
        choice.on_failure(server, clock())
    return outcome


def _is_refusal(response: HttpResponse) -> bool:
    """Whether the server did not run the request, and may do so later."""
    if response.status == 429:
        return seconds_to_wait(response) is not None
    return response.status == 503


def _pause_before_retry(
    call: ClientCall[T],
    outcome: HttpResponse | ExchangeFailed,
    policy: RetryPolicy,
    retry: int,
    random: Callable[[], float],
    servers: int,
) -> float | None:
    """Seconds before the next attempt; None: there is none."""
    if retry >= policy.retries:
        return None
    if isinstance(outcome, HttpResponse):
        if not call.may_repeat:
            return None
        if retry + 1 < servers:  # another server may have room at once
            return 0.0
        return policy.wait(retry, seconds_to_wait(outcome), random())
    if outcome.timed_out or (outcome.was_sent and not call.may_repeat):
        return None
    if retry + 1 < servers:
        return 0.0
    return policy.wait(retry, None, random())


def _error(server: ServerEndpoint, failure: ExchangeFailed, seconds: float | None) -> ServingError:
    if failure.timed_out:
        return RequestExpired(f"{server.url} did not answer within {seconds:g} s")
    advice = "is the server running, and the URL right?"
    if isinstance(failure.__cause__, ssl.SSLCertVerificationError):
        advice = "give the certificate to trust as ca_file"
    return ServerUnreachable(f"{server.url}: {failure}\n{advice}")
