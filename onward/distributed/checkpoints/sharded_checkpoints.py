"""ShardedCheckpoints: a folder of checkpoints that all processes of a group write together.

    checkpoints = ShardedCheckpoints("runs/7", keep=3, communicator=groups.whole)
    found = checkpoints.latest()                  # the same on every rank
    checkpoints.save(pieces, properties, step=100)

Every method is called by all ranks alike, and returns or raises alike on all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.file_header import check_properties
from onward.checkpoints.folder import check_step, folder_error
from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded.commit import commit, discard, refuse_if_fenced
from onward.checkpoints.sharded.lease import Lease, take_lease
from onward.checkpoints.sharded.newest import (
    ListedCheckpoint,
    find_good,
    list_checkpoints,
    open_verified,
)
from onward.checkpoints.sharded.pieces import Piece, Pieces, listed_pieces
from onward.checkpoints.sharded.save_folders import SaveFolder, list_saves
from onward.checkpoints.sharded.sharded_checkpoint import ShardedCheckpoint
from onward.checkpoints.sharded.write_plan import Plan, held_by, pieces_to_write, plan_writes
from onward.checkpoints.tensor_files import StrPath
from onward.distributed.checkpoints.group_results import (
    ObjectGroup,
    OneProcess,
    from_rank_0,
    gather_outcomes,
    gather_results,
)
from onward.distributed.checkpoints.part_writer import PartWriter
from onward.errors import CheckpointCorrupt, CheckpointError, RunFenced
from onward.graph.paths import to_path

log = logging.getLogger("onward")


@dataclass(frozen=True)
class _StartedSave:
    """A save whose parts are written, or being written."""

    save: SaveFolder
    properties: dict[str, Any]
    metric: float | None
    writer: PartWriter


class ShardedCheckpoints:
    """The checkpoints of one training run, written and read by all processes of a group."""

    def __init__(
        self,
        folder: StrPath,
        *,
        keep: int | None = 3,
        keep_best: int = 1,
        better: Literal["lower", "higher"] = "lower",
        every: int | None = None,
        communicator: ObjectGroup | None = None,
        asynchronous: bool = False,
        disk: Disk = DISK,
    ) -> None:
        """Keep the `keep` newest (None: all) and the `keep_best` with the better metric.

        Args:
            folder: of the run, on a disk that all processes share; made when it is needed
            keep: how many of the newest stay; None: all
            keep_best: how many of the best stay
            better: which metric is the better one
            every: steps between two saves, for `due`
            communicator: the group of all processes of the run; None: only this process
            asynchronous: write in a thread while training goes on; a save is committed by the next
                call of save, latest, commit_pending or close
            disk: the file operations
        """
        self._retention = Retention(keep, keep_best, better, every)
        self.folder, self.asynchronous = to_path(folder), asynchronous
        self.failures: list[CheckpointError] = []  # of try_save, and of asynchronous saves
        self._group: ObjectGroup = communicator or OneProcess()
        self._disk = disk
        self._lease: Lease | None = None
        self._started: _StartedSave | None = None
        self._planned: tuple[list[str], Plan] = [], []
        self._damaged: set[Path] = set()

    def due(self, step: int) -> bool:
        """Whether to save after this step, by `every`; never if it is None."""
        return self._retention.due(step)

    def take_over(self) -> int:
        """Take the run's next token, once; earlier groups can no longer commit. Returns it.

        `latest` and `save` do it first of all.
        """
        if self._lease is None:
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            self._lease = from_rank_0(
                self._group, lambda: take_lease(self.folder, owner, disk=self._disk)
            )
        return self._lease.token

    # -- saving ----------------------------------------------------------------------------------

    def save(
        self,
        pieces: Pieces,
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path:
        """Save a checkpoint durably, then remove those no longer kept; returns its folder.

        Each rank gives the pieces that it holds; what several ranks hold is written once. The
        properties and the metric are those of rank 0. CheckpointError if it fails on any rank:
        earlier checkpoints are not lost then. RunFenced if another group has taken the run over.

        An asynchronous save returns when the pieces are copied; if it fails, the error is logged
        and appended to `failures` when it would have been committed.
        """
        self.take_over()
        self.commit_pending()
        started = self._start(pieces, properties, step, metric)
        if not self.asynchronous:
            return self._commit(started)
        self._started = started
        return started.save.path

    def try_save(
        self,
        pieces: Pieces,
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path | None:
        """Save; on failure, log the error, append it to `failures` and return None."""
        try:
            return self.save(pieces, properties, step, metric)
        except CheckpointError as error:
            self._report(error)
            return None

    def commit_pending(self, *, wait: bool = True) -> Path | None:
        """Commit an asynchronous save; returns its folder, None if there is none or it failed.

        Not to `wait`: only if all ranks have written their parts already.
        """
        started = self._started
        if started is None:
            return None
        if not wait and not all(self._group.gather_objects(started.writer.is_done)):
            return None
        self._started = None
        try:
            return self._commit(started)
        except CheckpointError as error:
            self._report(error)
            return None

    def close(self) -> None:
        """Commit an asynchronous save that is not committed yet; CheckpointError if it fails."""
        started, self._started = self._started, None
        if started is not None:
            self._commit(started)

    def __enter__(self) -> ShardedCheckpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._started is not None:  # the other processes may be gone
            self._started.writer.wait()

    def _start(
        self, pieces: Pieces, properties: Mapping[str, Any], step: int, metric: float | None
    ) -> _StartedSave:
        """Agree on the save and on who writes what, and write this rank's part."""
        listed: dict[str, list[Piece]] = {}

        def check() -> tuple[int, float | None, str, int]:
            checked = check_step(step, metric)
            check_properties(properties)
            listed.update(listed_pieces(pieces))
            digest = hashlib.sha256(repr(held_by(listed)).encode()).hexdigest()
            return (*checked, digest, self._next_serial() if self._group.rank == 0 else 0)

        agreed = gather_results(self._group, check)
        at, measured, _, serial = agreed[0]
        if others := {each[0] for each in agreed} - {at}:
            raise CheckpointError(
                f"rank 0 saves step {at}, and another rank step {min(others)}\n"
                "call save on all ranks after the same step"
            )
        digests = [each[2] for each in agreed]
        if digests != self._planned[0]:
            self._planned = digests, plan_writes(self._group.gather_objects(held_by(listed)))
        mine = pieces_to_write(listed, self._planned[1][self._group.rank])
        save = SaveFolder(self.folder, at, self.take_over(), serial)
        writer = PartWriter(
            save, self._group.rank, mine, self._disk, asynchronous=self.asynchronous
        )
        return _StartedSave(save, dict(properties), measured, writer)

    def _next_serial(self) -> int:
        try:
            saves = list_saves(self.folder, self._disk)
        except OSError as error:
            raise folder_error(self.folder, error) from error
        return 1 + max((each.serial for each in saves), default=0)

    def _commit(self, started: _StartedSave) -> Path:
        """Commit a save when all ranks have written their parts; raises alike on all of them."""
        try:
            digests = gather_results(self._group, started.writer.result)
        except CheckpointError as error:
            from_rank_0(self._group, lambda: self._give_up(started.save))
            raise error
        return from_rank_0(self._group, lambda: self._commit_parts(started, digests))

    def _commit_parts(self, started: _StartedSave, digests: Sequence[str]) -> Path:
        assert self._lease is not None
        try:
            return commit(
                started.save,
                digests,
                started.properties,
                lease=self._lease,
                metric=started.metric,
                retention=self._retention,
                damaged=self._damaged,
                disk=self._disk,
            )
        except (CheckpointError, RunFenced) as error:
            if isinstance(error, RunFenced):
                log.error("%s", error)
            discard(started.save, disk=self._disk)
            raise

    def _give_up(self, save: SaveFolder) -> None:
        """Remove what a failed save has left; RunFenced if that is why it failed."""
        assert self._lease is not None
        try:
            refuse_if_fenced(save, self._lease, self._disk)
        except CheckpointError:  # the disk fails: the first error is the one to raise
            pass
        except RunFenced as error:
            log.error("%s", error)
            raise
        finally:
            discard(save, disk=self._disk)

    def _report(self, error: CheckpointError) -> None:
        self.failures.append(error)
        if self._group.rank == 0:
            log.error("%s", error)

    # -- loading ---------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        listed = from_rank_0(self._group, self._listed)
        return sorted({each.step for each in listed if not each.problem})

    def latest(self) -> ShardedCheckpoint | None:
        """The last saved checkpoint that every rank can read; None if there are no checkpoints.

        The ranks verify its files together, each some of them.
        """
        return self._first_good(lambda listed: listed[::-1])

    def best(self) -> ShardedCheckpoint | None:
        """The checkpoint with the best metric that every rank can read; None if none has one."""
        return self._first_good(self._retention.by_metric)

    def load(self, step: int) -> ShardedCheckpoint:
        """The checkpoint of one step, the newest of them; CheckpointError if it cannot be read."""
        found = self._first_good(
            lambda listed: [each for each in listed[::-1] if each.step == step][:1]
        )
        if found is None:
            there = ", ".join(map(str, self.steps()))
            raise CheckpointError(
                f"{self.folder} has no checkpoint of step {step}\nthere are: {there or 'none'}"
            )
        return found

    def _listed(self) -> list[ListedCheckpoint]:
        return list_checkpoints(self.folder, disk=self._disk)

    def _first_good(
        self, order: Callable[[list[ListedCheckpoint]], Sequence[ListedCheckpoint]]
    ) -> ShardedCheckpoint | None:
        self.take_over()  # from here on, an earlier group adds no checkpoint that we would miss
        self.commit_pending()
        listed = from_rank_0(self._group, lambda: order(self._listed()))
        found, problems = find_good(self.folder, listed, self._open_together)
        if self._group.rank == 0:
            for problem in problems:
                log.warning("%s", problem)
        return found

    def _open_together(
        self, listed: ListedCheckpoint
    ) -> tuple[ShardedCheckpoint | None, list[str]]:
        """Open a checkpoint on all ranks, which share the work of verifying it."""
        group, found = self._group, []
        own = dataclasses.replace(listed, path=self.folder / listed.path.name)

        def open_share() -> None:
            found.append(open_verified(own, share=(group.rank, group.size), disk=self._disk))

        problems = []
        for rank, (_, kind, text) in enumerate(gather_outcomes(group, open_share)):
            if kind:
                where = f"rank {rank}: " if group.size > 1 else ""
                problems.append(where + text.splitlines()[0])
            if kind == CheckpointCorrupt.__name__:
                self._damaged.add(own.path)
        if problems:
            return None, problems
        found[0].trust()
        return found[0], []
