"""Progress of long work on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console

from onward.cli.console import make_console, make_progress

_FIRST = 5.0  # seconds before a step's first line; each next line takes twice as long


class Timer(Protocol):
    """The part of `threading.Timer` that is used."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class WorkProgress:
    """A context that shows the current step of long work."""

    def __init__(
        self,
        console: Console | None = None,
        make_timer: Callable[[float, Callable[[], Any]], Timer] = threading.Timer,
    ) -> None:
        self._console = console or make_console(stderr=True)
        self._bar = make_progress(self._console)
        self._task = self._bar.add_task("starting", total=None)
        self._make_timer = make_timer
        self._timer: Timer | None = None
        self._step = ""

    def show_step(self, step: str, done: float, total: float | None) -> None:
        """Show the step that begins now, and how much is done before it."""
        self._bar.update(self._task, description=step, completed=done, total=total)
        if step != self._step and not self._console.is_terminal:
            self._step = step
            self._cancel_timer()
            self._print_after(_FIRST, _FIRST)

    def _print_after(self, seconds: float, elapsed: float) -> None:
        def print_line() -> None:
            self._console.print(f"{self._step}: {elapsed:g} s so far", soft_wrap=True)
            self._print_after(elapsed, 2 * elapsed)

        self._timer = self._make_timer(seconds, print_line)
        self._timer.daemon = True
        self._timer.start()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> WorkProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._cancel_timer()
        self._bar.stop()
