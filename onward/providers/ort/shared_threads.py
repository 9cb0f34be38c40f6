"""Threads that all sessions of a process may share, instead of threads of each session."""

from __future__ import annotations

import logging

import onnxruntime

_LOG = logging.getLogger("onward")


def share_threads(count: int) -> None:
    """Start threads for sessions with `use_per_session_threads=False`.

    A process can do it once: later calls keep the threads that it has.
    """
    try:
        onnxruntime.set_global_thread_pool_sizes(count, 1)
    except RuntimeError as error:
        _LOG.warning("this process shares threads already, their number stays: %s", error)
