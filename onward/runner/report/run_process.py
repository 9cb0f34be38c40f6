"""The process of a run: written into run.json, so that a run that died is known as such."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any


def this_process() -> dict[str, Any]:
    """The entries of run.json that name this process: `folder.write_record(**this_process())`.

    >>> sorted(this_process())
    ['host', 'pid']
    """
    return {"pid": os.getpid(), "host": socket.gethostname()}


def has_died(record: Mapping[str, Any]) -> bool:
    """Whether a run that has not ended has no process; False where this machine cannot know."""
    pid, host = record.get("pid"), record.get("host")
    if record.get("status") != "running" or host != socket.gethostname() or os.name != "posix":
        return False
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's process
        return False
    return False
