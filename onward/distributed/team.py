"""ProcessTeam: the processes of a run as `onward train` uses them, over torch.distributed."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

from onward.distributed.checkpoints.sharded_states import ShardedStates
from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import ProcessGroups
from onward.errors import OnwardError

_FAILURE = "onward/failure"  # in the store of the process group: why a process ended


class ProcessTeam:
    """The team of `onward.runner.team` for several processes.

    `launch` and `restarts` are the launcher's facts about its job.
    """

    def __init__(self, groups: ProcessGroups, launch: str | None = None, restarts: int = 0) -> None:
        self.parallel: Parallel = groups.parallel
        self.rank, self.size = groups.whole.rank, groups.whole.size
        self.local_size = groups.ranks.local_size
        self.launch, self.restarts = launch, restarts
        self._whole = groups.whole
        if self.rank == 0:
            with _store() as store:
                store.delete_key(_FAILURE)  # of an earlier attempt, where the launcher keeps it

    @property
    def is_sharded(self) -> bool:
        return self.parallel.shard > 1

    @property
    def backend(self) -> str:
        return str(dist.get_backend())

    @property
    def bytes_sent(self) -> int:
        return self._whole.sent.total()

    def largest(self, number: int) -> int:
        numbers = torch.tensor([number])
        self._whole.all_reduce(numbers, "max").wait()
        return int(numbers)

    def gather(self, value: Any) -> list[Any]:
        return self._whole.gather_objects(value)

    def broadcast(self, value: Any) -> Any:
        return self._whole.broadcast_object(value)

    def open_checkpoints(
        self, folder: Path, *, keep: int, better: Literal["lower", "higher"]
    ) -> ShardedStates | None:
        if self.parallel.local_steps is not None:  # between averages, weights are not the same
            return None
        if not self._is_shared(folder.parent):
            return None
        return ShardedStates(folder, self._whole, keep=keep, better=better)

    def _is_shared(self, folder: Path) -> bool:
        """Whether all processes see the same folder: a file of process 0 appears in all of them."""
        probe = folder / f".shared-{secrets.token_hex(8)}"
        if self.rank == 0:
            with contextlib.suppress(OSError):
                probe.touch()
        name = self.broadcast(probe.name)
        seen = all(self.gather((folder / name).exists()))
        if self.rank == 0:
            with contextlib.suppress(OSError):
                probe.unlink()
        return seen

    def tell_failure(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, OnwardError) else f"{type(error).__name__}: {error}"
        with _store() as store:
            store.set(_FAILURE, f"process {self.rank} ended the run: {text}")

    def find_failure(self) -> str | None:
        with _store() as store:
            if store.check([_FAILURE]):
                return str(store.get(_FAILURE).decode())
        return None


@contextlib.contextmanager
def _store() -> Iterator[Any]:
    """The store through which the processes met; nothing happens where it is gone."""
    # its process may have ended, and some kinds of stores lack some calls
    with contextlib.suppress(RuntimeError, dist.DistError, NotImplementedError):
        yield distributed_c10d._get_default_store()
