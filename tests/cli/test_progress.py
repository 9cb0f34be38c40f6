"""What long work tells on stderr, with an alarm that the test rings."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from onward.cli.progress import Work


class FakeAlarm:
    """An alarm that rings when it is told to."""

    made: list[FakeAlarm]

    def __init__(self, seconds: float, ring: Callable[[], Any]) -> None:
        self.seconds, self.ring, self.daemon, self.is_on = seconds, ring, False, False
        FakeAlarm.made.append(self)

    def start(self) -> None:
        self.is_on = True

    def cancel(self) -> None:
        self.is_on = False


def work(*, terminal: bool) -> tuple[Work, io.StringIO]:
    FakeAlarm.made = []
    text = io.StringIO()
    return Work(Console(file=text, force_terminal=terminal, width=100), FakeAlarm), text


def test_long_step_is_told_where_no_bar_is_shown() -> None:
    shown, text = work(terminal=False)
    with shown:
        shown.at("opening torch", 0, 2)
        shown.at("opening torch", 0, 2)
        assert [alarm.seconds for alarm in FakeAlarm.made] == [5]
        FakeAlarm.made[-1].ring()
        FakeAlarm.made[-1].ring()
        shown.at("measuring", 1, 2)
        assert [alarm.seconds for alarm in FakeAlarm.made] == [5, 5, 10, 5]
        assert [alarm.is_on for alarm in FakeAlarm.made] == [True, True, False, True]
    assert not FakeAlarm.made[-1].is_on
    assert text.getvalue() == "opening torch: 5 s so far\nopening torch: 10 s so far\n"


def test_terminal_has_a_bar_instead() -> None:
    shown, _ = work(terminal=True)
    with shown:
        shown.at("opening torch", 0, 2)
    assert not FakeAlarm.made
