"""Ctrl-C and SIGTERM end a run after its current step, with everything saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from onward.runner.run import INTERRUPTED, Run


@contextlib.contextmanager
def stop_on_signals(run: Run) -> Iterator[None]:
    """The first signal asks the run to stop; a second Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals only in the main thread
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if run.asked is not None:
            signal.default_int_handler(number, frame)
        run.is_terminated = number == signal.SIGTERM
        run.stop(INTERRUPTED)

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
