"""Progress of long work on stderr, with timers that the test fires."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from onward.cli.progress import WorkProgress


class FakeTimer:
    """A timer that fires when the test calls `fire`."""

    made: list[FakeTimer]

    def __init__(self, seconds: float, fire: Callable[[], Any]) -> None:
        self.seconds, self.fire, self.daemon, self.is_on = seconds, fire, False, False
        FakeTimer.made.append(self)

    def start(self) -> None:
        self.is_on = True

    def cancel(self) -> None:
        self.is_on = False


def work(*, terminal: bool) -> tuple[WorkProgress, io.StringIO]:
    FakeTimer.made = []
    text = io.StringIO()
    return WorkProgress(Console(file=text, force_terminal=terminal, width=100), FakeTimer), text


def test_long_step_prints_lines_where_there_is_no_terminal() -> None:
    shown, text = work(terminal=False)
    with shown:
        shown.show_step("opening torch", 0, 2)
        shown.show_step("opening torch", 0, 2)
        assert [timer.seconds for timer in FakeTimer.made] == [5]
        FakeTimer.made[-1].fire()
        FakeTimer.made[-1].fire()
        shown.show_step("measuring", 1, 2)
        assert [timer.seconds for timer in FakeTimer.made] == [5, 5, 10, 5]
        assert [timer.is_on for timer in FakeTimer.made] == [True, True, False, True]
    assert not FakeTimer.made[-1].is_on
    assert text.getvalue() == "opening torch: 5 s so far\nopening torch: 10 s so far\n"


def test_terminal_has_a_bar_and_no_timers() -> None:
    shown, _ = work(terminal=True)
    with shown:
        shown.show_step("opening torch", 0, 2)
    assert not FakeTimer.made
