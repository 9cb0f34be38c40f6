"""Observers: all are called; one that raises is logged once and stops no other."""

from __future__ import annotations

import logging

import pytest

from onward.serving.observer import NoObserver, Observer, RequestTimes
from onward.serving.operation.observers import combine_observers


class Recorder(NoObserver):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_request(self, model: str, *rest: object) -> None:
        self.calls.append(f"request {model}")

    def on_batch(self, model: str, *rest: object) -> None:
        self.calls.append(f"batch {model}")

    def on_queue(self, model: str, *rest: object) -> None:
        self.calls.append(f"queue {model}")


class Broken(NoObserver):
    def on_request(self, *given: object) -> None:
        raise ValueError("broken")

    on_batch = on_queue = on_request


def tell(observer: Observer) -> None:
    observer.on_request("m", "1", "", RequestTimes(), None)
    observer.on_batch("m", "1", 1, 1, 0.1)
    observer.on_queue("m", "1", 0)


def test_all_observers_are_called_in_order() -> None:
    first, second = Recorder(), Recorder()
    tell(combine_observers([first, second]))
    assert first.calls == second.calls == ["request m", "batch m", "queue m"]


def test_a_failing_observer_is_logged_once_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    after = Recorder()
    observers = combine_observers([Broken(), after])
    with caplog.at_level(logging.ERROR, "onward.serving"):
        for _ in range(3):
            tell(observers)
    assert len(after.calls) == 9
    assert [record.getMessage() for record in caplog.records] == [
        "Broken failed; its next errors are not logged"
    ]


def test_none_is_an_observer_too() -> None:
    tell(combine_observers([]))
