"""Several observers as one; one that raises never harms a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onward.serving.observer import Answered, NoObserver, Observer, RequestTimes

_LOG = logging.getLogger("onward.serving")


def combine_observers(observers: Sequence[Observer]) -> Observer:
    """An observer that calls all of them."""
    return Observers(observers) if observers else NoObserver()


class Observers:
    """Calls each observer in turn; the first error of each is logged, later ones are ignored."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._failed: set[int] = set()  # places of those whose error was logged

    def on_request(
        self,
        model: str,
        version: str,
        request_id: str,
        times: RequestTimes,
        error: Exception | None,
    ) -> None:
        for place, observer in enumerate(self._observers):
            try:
                observer.on_request(model, version, request_id, times, error)
            except Exception:
                self._log_once(place)

    def on_answers(self, model: str, version: str, answers: Sequence[Answered]) -> None:
        for place, observer in enumerate(self._observers):
            try:
                observer.on_answers(model, version, answers)
            except Exception:
                self._log_once(place)

    def on_batch(self, model: str, version: str, requests: int, rows: int, run: float) -> None:
        for place, observer in enumerate(self._observers):
            try:
                observer.on_batch(model, version, requests, rows, run)
            except Exception:
                self._log_once(place)

    def on_queue(self, model: str, version: str, length: int) -> None:
        for place, observer in enumerate(self._observers):
            try:
                observer.on_queue(model, version, length)
            except Exception:
                self._log_once(place)

    def _log_once(self, place: int) -> None:
        if place not in self._failed:
            self._failed.add(place)
            name = type(self._observers[place]).__name__
            _LOG.exception("%s failed; its next errors are not logged", name)
