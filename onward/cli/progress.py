"""What long work is doing, on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console

from onward.cli.console import make_console, make_progress

_FIRST = 5.0  # seconds that a step may take in silence; then lines come ever more rarely


class Alarm(Protocol):
    """What `threading.Timer` is."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class Work:
    """Long work in steps; a context that shows the step it is at."""

    def __init__(
        self,
        console: Console | None = None,
        alarm: Callable[[float, Callable[[], Any]], Alarm] = threading.Timer,
    ) -> None:
        self._console = console or make_console(stderr=True)
        self._bar = make_progress(self._console)
        self._task = self._bar.add_task("starting", total=None)
        self._alarm = alarm
        self._set: Alarm | None = None
        self._what = ""

    def at(self, what: str, done: float, total: float | None) -> None:
        """The step that begins now, and how much is done before it."""
        self._bar.update(self._task, description=what, completed=done, total=total)
        if what != self._what and not self._console.is_terminal:
            self._what = what
            self._cancel()
            self._wait(_FIRST, _FIRST)

    def _wait(self, seconds: float, waited: float) -> None:
        def tell() -> None:
            self._console.print(f"{self._what}: {waited:g} s so far", soft_wrap=True)
            self._wait(waited, 2 * waited)

        self._set = self._alarm(seconds, tell)
        self._set.daemon = True
        self._set.start()

    def _cancel(self) -> None:
        if self._set is not None:
            self._set.cancel()

    def __enter__(self) -> Work:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._cancel()
        self._bar.stop()
