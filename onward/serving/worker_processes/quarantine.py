"""Quarantine: a model that keeps killing its worker processes is no longer run.

A death counts for a minute, or until the model has answered enough runs since. Three deaths that
count at the same time end it, until the model is loaded again.
"""

from __future__ import annotations

import threading

MAX_DEATHS = 3
WINDOW = 60.0  # seconds that a death counts
FORGIVING_RUNS = 20  # runs after which the deaths before them count no more


class Quarantine:
    """The deaths of one model's workers. Times are given, in seconds of any one clock."""

    def __init__(
        self,
        model: str,
        *,
        max_deaths: int = MAX_DEATHS,
        window: float = WINDOW,
        forgiving_runs: int = FORGIVING_RUNS,
    ) -> None:
        self._model, self._max_deaths = model, max_deaths
        self._window, self._forgiving_runs = window, forgiving_runs
        self._deaths: list[float] = []
        self._runs = 0  # since the last death
        self._reason: str | None = None
        self._lock = threading.Lock()  # a model's instances run in threads of their own

    @property
    def reason(self) -> str | None:
        """Why the model is not run, and what to do; None while it is."""
        return self._reason

    def on_death(self, now: float, cause: str) -> None:
        """A worker died while it opened or ran the model."""
        with self._lock:
            self._runs = 0
            self._deaths = [each for each in self._deaths if now - each < self._window]
            self._deaths.append(now)
            if self._reason is None and len(self._deaths) >= self._max_deaths:
                first = (cause.splitlines() or ["unknown"])[0]
                self._reason = (
                    f"model {self._model!r} is quarantined: it killed {len(self._deaths)} worker "
                    f"processes within {now - self._deaths[0]:.0f} s; the last one: {first}\n"
                    f"fix it, then load it again: POST /v2/repository/models/{self._model}/load"
                )

    def on_success(self) -> None:
        """A run was answered, by any of the model's workers."""
        if not self._deaths:
            return
        with self._lock:
            self._runs += 1
            if self._runs >= self._forgiving_runs:
                self._deaths.clear()
