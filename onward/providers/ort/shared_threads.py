"""Threads that all sessions of a process share, instead of threads of each session.

onnxruntime allows one or the other: once threads are shared, no session has its own.
"""

from __future__ import annotations

import logging

import onnxruntime

_LOG = logging.getLogger("onward")
_started = 0  # threads that this process shares


def share_threads(count: int) -> None:
    """Start the shared threads of this process; a process can do it once."""
    global _started
    if not _started:
        onnxruntime.set_global_thread_pool_sizes(count, 1)
        _started = count
    elif _started != count:
        _LOG.warning("this process already shares %d threads, which stay", _started)


def are_threads_shared() -> bool:
    """Whether sessions of this process must share threads."""
    return bool(_started)
