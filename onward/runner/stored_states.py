"""StoredStates: where a run saves its state, and finds it again.

WholeCheckpoints        what one process reads and writes, such as `checkpoints/folder.py`
FirstProcessStates      process 0 saves the whole state for all
Team.open_checkpoints   each process writes its part of the state

One process writes a copy of its state in a thread, while it trains on: a save waits for the disk
several times. A state too large to be copied, and those of several processes, are written at once.
A copy may also be held in memory until the next save, as one of the best state is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onward.runner.team import Team, run_on_first
from onward.sessions.training.session import TrainingSession

Array = np.ndarray[Any, Any]

_COPIED = 256 << 20  # bytes of a state that is copied at most


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


class Save(Protocol):
    """A save that was begun."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> tuple[Path, ...]:
        """The files, once they are written; none if that failed: the error is logged.

        There are two if a state was held until then.
        """
        ...


@dataclass(frozen=True)
class FinishedSave:
    """A save that is done."""

    path: Path | None
    is_done: bool = True

    def wait(self) -> tuple[Path, ...]:
        return () if self.path is None else (self.path,)


@dataclass(frozen=True)
class _BackgroundSave:
    """A save in a thread."""

    written: Future[tuple[Path, ...]]

    @property
    def is_done(self) -> bool:
        return self.written.done()

    def wait(self) -> tuple[Path, ...]:
        return self.written.result()


@dataclass(frozen=True)
class _CopiedState:
    """A state of a session that its steps do not change."""

    tensors: Mapping[str, Array]
    properties: Mapping[str, Any]
    step: int
    metric: float | None


class StoredStates(Protocol):
    """The saved states of a run; all processes call every method, and get the same results."""

    def begin_save(self, session: TrainingSession, step: int, metric: float | None) -> Save:
        """Save the session's state and properties as they are now; one at a time."""
        ...

    def hold(self, session: TrainingSession, step: int, metric: float | None) -> bool:
        """Keep a copy of the state, which the next save writes too; False: save it now."""
        ...

    def latest(self) -> SavedState | None:
        """The last saved state; None if there is none."""
        ...

    def best(self) -> SavedState | None:
        """The state with the best metric, in process 0; None elsewhere, and if there is none.

        It is the one that is held, if there is one: the disk may be full.
        """
        ...


class FirstProcessStates:
    """Process 0 saves the whole state, and gives it to all."""

    def __init__(self, checkpoints: WholeCheckpoints, team: Team) -> None:
        self._checkpoints, self._team = checkpoints, team
        self._held: _CopiedState | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-checkpoints")

    def begin_save(self, session: TrainingSession, step: int, metric: float | None) -> Save:
        if self._team.size == 1:
            return self._begin(session, step, metric)
        # of parts, every process has to take part in reading the whole
        state = session.checkpoint() if self._team.is_sharded else None

        def save() -> Path | None:
            found = session.checkpoint() if state is None else state
            return self._checkpoints.try_save(*found, step=step, metric=metric)

        return FinishedSave(run_on_first(self._team, save))

    def _begin(self, session: TrainingSession, step: int, metric: float | None) -> Save:
        copied = _copy_state(session, step, metric)
        if copied is None:
            return FinishedSave(self._checkpoints.try_save(*session.checkpoint(), step, metric))
        return _BackgroundSave(self._thread.submit(self._write, copied))

    def hold(self, session: TrainingSession, step: int, metric: float | None) -> bool:
        held = _copy_state(session, step, metric) if self._team.size == 1 else None
        self._held = held or self._held
        return held is not None

    def _write(self, state: _CopiedState) -> tuple[Path, ...]:
        """Write the state that is held, then this one."""
        held, earlier = self._held, None
        if held is not None and held.step != state.step:
            earlier = self._try_save(held)
        written = self._try_save(state)
        is_kept = held is not None and (written if held.step == state.step else earlier) is None
        if self._held is held and not is_kept:  # a better one may be held by now
            self._held = None
        return () if written is None else (*([] if earlier is None else [earlier]), written)

    def _try_save(self, state: _CopiedState) -> Path | None:
        return self._checkpoints.try_save(state.tensors, state.properties, state.step, state.metric)

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
        if self._team.rank:
            return None
        return self._held or self._checkpoints.best()


def _copy_state(session: TrainingSession, step: int, metric: float | None) -> _CopiedState | None:
    """The session's state, which its next steps will change; None: it is too large."""
    tensors, properties = session.checkpoint()
    if sum(tensor.nbytes for tensor in tensors.values()) > _COPIED:
        return None
    kept = {name: np.array(tensor) for name, tensor in tensors.items()}
    return _CopiedState(kept, copy.deepcopy(dict(properties)), step, metric)


@dataclass(frozen=True)
class _ReceivedState:
    """A saved state that process 0 has read for the others."""

    tensors: Mapping[str, Array]
    properties: Mapping[str, Any]
    step: int | None
