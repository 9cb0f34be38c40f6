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
    return _is_here(record) and not _exists(record["pid"])


def living_process(record: Mapping[str, Any]) -> int:
    """The process of this machine that is training a run; 0 if there is none, or it is this one."""
    alive = _is_here(record) and record["pid"] != os.getpid() and _exists(record["pid"])
    return int(record["pid"]) if alive else 0


def _is_here(record: Mapping[str, Any]) -> bool:
    """Whether a run has not ended, and its process is, or was, one of this machine."""
    pid = record.get("pid")
    is_number = isinstance(pid, int) and not isinstance(pid, bool) and pid > 0
    here = record.get("host") == socket.gethostname() and os.name == "posix"
    return record.get("status") == "running" and here and is_number


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True
