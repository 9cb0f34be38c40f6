"""Saved states of a run in sharded checkpoints, as `onward.train` saves and finds them.

ShardedStates           each process of a team writes its part
OneProcessCheckpoints   one process continues in a folder that several have written
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onward.checkpoints.sharded.pieces import whole_pieces
from onward.checkpoints.sharded.sharded_checkpoint import ShardedCheckpoint
from onward.checkpoints.sharded.stored_tensors import StoredTensors
from onward.distributed.checkpoints.group_results import ObjectGroup
from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints
from onward.errors import PeerFailed, RunFenced
from onward.programs.program import Array
from onward.runner.stored_states import FinishedSave
from onward.sessions.training.session import TrainingSession

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class SavedShards:
    """A saved state whose tensors are read when they are asked for."""

    tensors: Mapping[str, Array]
    properties: dict[str, Any]
    step: int | None


class ShardedStates:
    """The saved states of a run, of which each process of the group writes its part.

    The folder is on a disk that all of them see. The first save, or the first `latest`, takes the
    run's token: processes that trained the run before can no longer save.
    """

    def __init__(self, folder: Path, group: ObjectGroup, *, keep: int, better: Better) -> None:
        self._rank = group.rank
        self._checkpoints = ShardedCheckpoints(
            folder, keep=keep, keep_best=1, better=better, communicator=group
        )

    def begin_save(self, session: TrainingSession, step: int, metric: float | None) -> FinishedSave:
        """Save the pieces that this process holds; RunFenced if others own the run now."""
        pieces, properties = session.checkpoint_pieces()
        try:
            return FinishedSave(self._checkpoints.try_save(pieces, properties, step, metric))
        except RunFenced as error:
            if self._rank:  # one process reports it
                raise PeerFailed(str(error)) from error
            raise

    def hold(self, session: TrainingSession, step: int, metric: float | None) -> bool:
        return False  # pieces are written at once

    def latest(self) -> SavedShards | None:
        return _saved(self._checkpoints.latest())

    def best(self) -> SavedShards | None:
        found = _saved(self._checkpoints.best())
        return found if self._rank == 0 else None


class OneProcessCheckpoints:
    """The methods of `Checkpoints`, in a folder of sharded checkpoints.

    Files of one process would count as older than what is there.
    """

    def __init__(self, folder: Path, *, keep: int, better: Better) -> None:
        self._checkpoints = ShardedCheckpoints(folder, keep=keep, keep_best=1, better=better)

    def try_save(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path | None:
        return self._checkpoints.try_save(whole_pieces(tensors), properties, step, metric)

    def latest(self) -> SavedShards | None:
        return _saved(self._checkpoints.latest())

    def best(self) -> SavedShards | None:
        return _saved(self._checkpoints.best())


def _saved(found: ShardedCheckpoint | None) -> SavedShards | None:
    if found is None:
        return None
    return SavedShards(StoredTensors(found), found.properties, found.step)
