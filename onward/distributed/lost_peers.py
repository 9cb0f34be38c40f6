"""Which process of a run is gone, and why a collective failed, in words."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_LOOKS, _PAUSE = 5, 0.05  # a process that is killed closes its connections before it has ended


class PeerProcess(NamedTuple):
    """A process of a run: its machine, and its number there."""

    host: str
    pid: int


def this_process() -> PeerProcess:
    return PeerProcess(socket.gethostname(), os.getpid())


def describe_loss(error: str, peers: Mapping[int, PeerProcess]) -> str:
    """Why a collective failed: the processes of this machine that have ended, or the error itself.

    `peers` are the other processes by rank; those of other machines cannot be looked at.
    """
    here = {rank: each for rank, each in peers.items() if each.host == socket.gethostname()}
    for look in range(_LOOKS if here else 0):
        gone = [f"process {rank} (pid {each.pid})" for rank, each in here.items() if ended(each)]
        if gone:
            return f"{', '.join(gone)} of this machine ended"
        time.sleep(_PAUSE if look + 1 < _LOOKS else 0)
    return translate_error(error)


def ended(process: PeerProcess) -> bool:
    """Whether a process of this machine has ended; one that its parent has not seen yet, too."""
    if sys.platform == "linux":
        try:
            status = Path(f"/proc/{process.pid}/stat").read_text()
        except OSError:
            return True
        return status.rpartition(")")[2].split()[0] in ("Z", "X")
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process
        return False
    return False


def translate_error(error: str) -> str:
    """The first line of an error of torch.distributed, in words where it is one of gloo's.

    >>> translate_error("[/x/pair.cc:553] Connection closed by peer [10.0.0.2]:1456. This is")
    'the connection to 10.0.0.2:1456 was closed'
    >>> translate_error("[/x/unbound_buffer.cc:81] Timed out waiting 3000ms for recv operation")
    'no answer within 3 s'
    """
    first = (error.strip() or "an error without a text").splitlines()[0]
    if found := re.search(r"(?:closed|reset) by peer \[([^\]]+)\]:(\d+)", first):
        host = f"[{found[1]}]" if ":" in found[1] else found[1]
        return f"the connection to {host}:{found[2]} was closed"
    if found := re.search(r"Timed out waiting (\d+) ?ms", first):
        return f"no answer within {int(found[1]) / 1000:g} s"
    return re.sub(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] ", "", first)
