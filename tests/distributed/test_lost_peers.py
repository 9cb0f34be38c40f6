"""Which process is gone, in words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from onward.distributed.lost_peers import (
    PeerProcess,
    describe_loss,
    ended,
    this_process,
    translate_error,
)

CLOSED = "[/w/pair.cc:553] Connection closed by peer [::1]:1456. This is typically caused by a"


def test_a_process_of_this_machine_that_has_ended_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        gone = PeerProcess(this_process().host, child.pid)
        assert ended(gone)
        peers = {0: this_process(), 3: gone, 5: PeerProcess("elsewhere", child.pid)}
        assert describe_loss(CLOSED, peers) == f"process 3 (pid {child.pid}) of this machine ended"


def test_processes_that_live_or_are_elsewhere_are_not_blamed() -> None:
    assert not ended(this_process())
    message = "the connection to [::1]:1456 was closed"
    assert describe_loss(CLOSED, {1: PeerProcess("elsewhere", 1)}) == message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("[a/b.cc:1] Read error [10.0.0.1]:80: Connection reset by peer", None),
        ("Timed out waiting 600000ms for recv operation to complete", "no answer within 600 s"),
        ("[a/b.cc:12] something else\nmore", "something else"),
        ("", "an error without a text"),
    ],
)
def test_errors_are_one_line_without_places_in_the_source(error: str, words: str | None) -> None:
    found = translate_error(error)
    assert ".cc" not in found and "\n" not in found
    assert words is None or found == words
