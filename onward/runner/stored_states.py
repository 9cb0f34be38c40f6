"""StoredStates: where a run saves its state, and finds it again.

WholeCheckpoints        what one process reads and writes, such as `checkpoints/folder.py`
FirstProcessStates      process 0 saves the whole state for all
Team.open_checkpoints   each process writes its part of the state
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onward.runner.team import Team, run_on_first
from onward.sessions.training.session import TrainingSession

Array = np.ndarray[Any, Any]


class SavedState(Protocol):
    """A saved state: what `TrainingSession.restore` takes, and its step."""

    @property
    def tensors(self) -> Mapping[str, Array]: ...

    @property
    def properties(self) -> Mapping[str, Any]: ...

    @property
    def step(self) -> int | None: ...


class WholeCheckpoints(Protocol):
    """A folder of checkpoints of one process, as `Checkpoints` is."""

    def try_save(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path | None: ...

    def latest(self) -> SavedState | None: ...

    def best(self) -> SavedState | None: ...


class StoredStates(Protocol):
    """The saved states of a run; all processes call every method, and get the same results."""

    def try_save(self, session: TrainingSession, step: int, metric: float | None) -> Path | None:
        """Save the session's state and properties; None if it failed: the error is logged."""
        ...

    def latest(self) -> SavedState | None:
        """The last saved state; None if there is none."""
        ...

    def best(self) -> SavedState | None:
        """The state with the best metric, in process 0; None elsewhere, and if there is none."""
        ...


class FirstProcessStates:
    """Process 0 saves the whole state, and gives it to all."""

    def __init__(self, checkpoints: WholeCheckpoints, team: Team) -> None:
        self._checkpoints, self._team = checkpoints, team

    def try_save(self, session: TrainingSession, step: int, metric: float | None) -> Path | None:
        # of parts, every process has to take part in reading the whole
        state = session.checkpoint() if self._team.is_sharded else None

        def save() -> Path | None:
            found = session.checkpoint() if state is None else state
            return self._checkpoints.try_save(*found, step=step, metric=metric)

        return run_on_first(self._team, save)

    def latest(self) -> SavedState | None:
        """The last saved state; other machines need not see the folder."""
        found: list[SavedState | None] = [None]

        def read() -> _ReceivedState | None:
            found[0] = state = self._checkpoints.latest()
            return None if state is None else _ReceivedState({}, state.properties, state.step)

        known = run_on_first(self._team, read)
        if self._team.size == 1 or known is None:
            return found[0]
        own: Mapping[str, Array] = {} if found[0] is None else found[0].tensors
        names = self._team.broadcast([*own])
        # one by one: a copy of all of them may not fit into memory
        tensors: dict[str, Any] = {name: self._team.broadcast(own.get(name)) for name in names}
        return _ReceivedState(tensors, known.properties, known.step)

    def best(self) -> SavedState | None:
        return self._checkpoints.best() if self._team.rank == 0 else None


@dataclass(frozen=True)
class _ReceivedState:
    """A saved state that process 0 has read for the others."""

    tensors: Mapping[str, Array]
    properties: Mapping[str, Any]
    step: int | None
