"""client_probe: a client that only ended its half stays, one that left is ended."""

from __future__ import annotations

import asyncio
import errno
import math
from typing import Any, cast

import pytest

from onward.serving.http.client_probe import CONTINUE, ClientProbe
from onward.serving.http.connection_limits import PROBE_AFTER


class FakeTransport:
    """A transport whose socket has an error."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> FakeTransport:
        assert name == "socket"
        return self

    def getsockopt(self, *_: Any) -> int:
        return self.error


@pytest.mark.parametrize("error", [0, errno.EPIPE])
def test_a_client_that_left_refuses_what_is_written(error: int) -> None:
    transport = FakeTransport(error)
    probe = ClientProbe(cast(asyncio.Transport, transport))
    assert probe.advance(may_send=True) == PROBE_AFTER
    assert (transport.written, transport.is_aborted) == ([CONTINUE], False)
    assert probe.advance(may_send=True) == math.inf
    assert (transport.written, transport.is_aborted) == ([CONTINUE], bool(error))


def test_nothing_is_written_into_an_answer() -> None:
    transport = FakeTransport()
    assert ClientProbe(cast(asyncio.Transport, transport)).advance(may_send=False) == math.inf
    assert transport.written == []
