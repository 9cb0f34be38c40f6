"""List the checkpoints of a folder, and open the newest or best that is not damaged.

Sharded checkpoints and files of whole tensors may be in one folder; files count as older.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.folder import folder_error
from onward.checkpoints.manifest import finite_or_none, read_catalog
from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded.save_folders import SaveFolder, list_saves
from onward.checkpoints.sharded.sharded_checkpoint import (
    ShardedCheckpoint,
    open_checkpoint,
    read_save,
)
from onward.checkpoints.tensor_files import Checkpoint, StrPath
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from onward.graph.paths import to_path
from onward.message_text import first_line

log = logging.getLogger("onward")


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint of a folder; `problem` says why it cannot be read, if its listing shows it."""

    path: Path
    step: int
    serial: int
    metric: float | None = None
    save: SaveFolder | None = None  # None: a file of whole tensors
    committed: bool = True
    problem: str = ""


def list_checkpoints(folder: StrPath, *, disk: Disk = DISK) -> list[ListedCheckpoint]:
    """The checkpoints of a folder, the oldest first; also unfinished and damaged ones."""
    folder = to_path(folder)
    if not folder.is_dir():
        return []
    try:
        files, saves = read_catalog(folder, disk), list_saves(folder, disk)
    except OSError as error:
        raise folder_error(folder, error) from error
    whole = [
        ListedCheckpoint(folder / entry.file, entry.step, entry.serial, entry.metric)
        for entry in sorted([*files.entries, *files.missing], key=lambda entry: entry.serial)
    ]
    unread = [
        ListedCheckpoint(folder / name, -1, 0, problem=why) for name, why in files.unread.items()
    ]
    return [*unread, *whole, *(_list_save(save, disk) for save in saves)]


def _list_save(save: SaveFolder, disk: Disk) -> ListedCheckpoint:
    try:
        metric = finite_or_none(read_save(save, disk).metric)
        return ListedCheckpoint(save.path, save.step, save.serial, metric, save)
    except CheckpointError as error:
        problem, committed = first_line(error), not isinstance(error, CheckpointMissing)
        return ListedCheckpoint(
            save.path, save.step, save.serial, None, save, committed=committed, problem=problem
        )


Attempt = Callable[[ListedCheckpoint], "tuple[ShardedCheckpoint | None, list[str]]"]


def find_good(
    folder: Path, listed: Sequence[ListedCheckpoint], attempt: Attempt
) -> tuple[ShardedCheckpoint | None, list[str]]:
    """The first checkpoint that an attempt opens, and the problems with those before it.

    CheckpointCorrupt if there are committed ones, and none can be read.
    """
    problems: list[str] = []
    for each in listed:
        found, errors = (None, [each.problem]) if each.problem else attempt(each)
        if found is not None:
            return found, [f"{problem}; step {found.step} is used instead" for problem in problems]
        problems += errors
    if any(each.committed for each in listed):
        raise CheckpointCorrupt(
            f"{folder}: none of its checkpoints can be read: {'; '.join(problems)}\n"
            "restore the folder from a copy, or start again in another one"
        )
    return None, problems


def open_verified(
    listed: ListedCheckpoint, *, share: tuple[int, int] = (0, 1), disk: Disk = DISK
) -> ShardedCheckpoint:
    """Open a checkpoint and verify this share (number, of how many) of its files."""
    found, (number, count) = open_checkpoint(listed.path, disk=disk), share
    found.verify(found.files[number::count])
    return found


def open_newest(folder: StrPath, *, disk: Disk = DISK) -> ShardedCheckpoint | None:
    """The newest checkpoint of a folder that is not damaged, verified; None if it has none.

    For those who read: it does not take the run over from the processes that train it.
    """
    return _open_first(to_path(folder), lambda listed: listed[::-1], disk)


def read_newest(folder: StrPath, *, disk: Disk = DISK) -> Checkpoint | None:
    """The newest checkpoint of a folder with all of its tensors whole, verified.

    If the processes that train remove it while it is read, the one after it is read.
    """
    found = open_newest(folder, disk=disk)
    try:
        return None if found is None else found.read_all()
    except CheckpointMissing:
        there = [each.path for each in list_checkpoints(folder, disk=disk) if not each.problem]
        if found is not None and found.path in there:
            raise
        return read_newest(folder, disk=disk)


def open_best(
    folder: StrPath, retention: Retention | None = None, *, disk: Disk = DISK
) -> ShardedCheckpoint | None:
    """The undamaged checkpoint with the best metric, verified; None if none has a metric."""
    return _open_first(to_path(folder), (retention or Retention()).by_metric, disk)


def _open_first(
    folder: Path,
    order: Callable[[list[ListedCheckpoint]], Sequence[ListedCheckpoint]],
    disk: Disk,
) -> ShardedCheckpoint | None:
    def attempt(each: ListedCheckpoint) -> tuple[ShardedCheckpoint | None, list[str]]:
        try:
            return open_verified(each, disk=disk), []
        except CheckpointError as error:
            return None, [first_line(error)]

    listed = list_checkpoints(folder, disk=disk)
    try:
        found, problems = find_good(folder, order(listed), attempt)
    except CheckpointCorrupt:
        if list_checkpoints(folder, disk=disk) != listed:  # another process changed it
            return _open_first(folder, order, disk)
        raise
    if problems and list_checkpoints(folder, disk=disk) != listed:
        return _open_first(folder, order, disk)
    for problem in problems:
        log.warning("%s", problem)
    return found
