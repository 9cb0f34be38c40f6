"""Helpers of the rows on sharded checkpoints: the pieces of a save, and groups that save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from conformance.reliability.saves import fault_of, metric_of, properties_of, tensors_of
from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.sharded.pieces import Piece
from onward.checkpoints.sharded.sharded_checkpoint import ShardedCheckpoint
from onward.distributed.checkpoints.group_results import ObjectGroup
from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints

REPLICATED = ("encoder.bias", "mask", "step", "nothing")


def pieces_of(number: int, rank: int, size: int, elements: int = 400) -> dict[str, Piece]:
    """What a rank holds of a save: some tensors whole, of others a range."""
    pieces = {}
    for name, tensor in tensors_of(number, elements).items():
        flat = np.ascontiguousarray(tensor).reshape(-1)
        low, high = flat.size * rank // size, flat.size * (rank + 1) // size
        if name in REPLICATED:
            low, high = 0, flat.size
        pieces[name] = Piece(array=flat[low:high], start=low, shape=tensor.shape)
    return pieces


def open_group(folder: Path, group: ObjectGroup, disk: Disk = DISK) -> ShardedCheckpoints:
    return ShardedCheckpoints(folder, keep=2, keep_best=1, communicator=group, disk=disk)


def save_number(
    checkpoints: ShardedCheckpoints, group: ObjectGroup, number: int, step: int,
    elements: int = 400,
) -> Path | None:  # fmt: skip
    """Save with try_save: None if it failed."""
    pieces = pieces_of(number, group.rank, group.size, elements)
    return checkpoints.try_save(pieces, properties_of(number), step, metric_of(number))


def latest_of(folder: Path, size: int = 2, disk: Disk = DISK) -> ShardedCheckpoint | None:
    """What ranks find as the newest; all of them find the same, each by its own share of work."""

    def find(group: ThreadRank) -> ShardedCheckpoint | None:
        return open_group(folder, group, disk).latest()

    found = run_ranks(size, find)
    paths = {each and each.path for each in found}
    assert len(paths) == 1, f"the ranks disagree: {paths}"
    return found[0]


def fault_of_latest(found: ShardedCheckpoint | None, elements: int = 400) -> str:
    """The difference between a checkpoint and its save; empty if there is none."""
    return fault_of(None if found is None else found.read_all(), elements)


def leftover_files(folder: Path) -> list[str]:
    """Temporary files, and folders without a manifest, that a writer left behind."""
    parts = [path.name for path in folder.rglob("*.part")]
    saves = [path.name for path in folder.glob("step-*") if not (path / "manifest.json").exists()]
    return parts + saves


def step_of(found: ShardedCheckpoint | None) -> Any:
    return None if found is None else found.step
