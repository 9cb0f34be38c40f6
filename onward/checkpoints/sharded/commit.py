"""Commit a sharded checkpoint when all ranks have written their parts, then remove old ones.

The manifest appears by one atomic rename: until then there is no checkpoint, after it there is a
whole one. The token is checked and the manifest renamed under one lock of the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.folder import locked_folder
from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded.lease import Lease, check_lease
from onward.checkpoints.sharded.newest import list_checkpoints
from onward.checkpoints.sharded.part_files import PartSummary, read_part
from onward.checkpoints.sharded.save_folders import (
    SaveFolder,
    is_committed,
    part_name,
    remove_save,
)
from onward.checkpoints.sharded.shard_manifest import (
    ShardManifest,
    encode_shard_manifest,
    join_parts,
)
from onward.checkpoints.tensor_files import atomic_write
from onward.errors import CheckpointCorrupt, CheckpointError
from onward.message_text import first_line

log = logging.getLogger("onward")


def commit(
    save: SaveFolder,
    digests: Sequence[str],
    properties: Mapping[str, Any],
    *,
    lease: Lease,
    metric: float | None = None,
    retention: Retention | None = None,
    damaged: Collection[Path] = (),
    disk: Disk = DISK,
) -> Path:
    """Make the parts of all ranks a checkpoint, durably; returns its folder.

    Args:
        save: the folder that the parts were written into
        digests: what `write_part` returned, by rank
        properties: anything that JSON has
        lease: the right to commit; RunFenced if another group has taken the run over
        metric: decides which checkpoint is the best
        retention: which older ones stay; None: all
        damaged: folders of checkpoints that are known to be damaged, which are not kept
        disk: the file operations
    """
    name = save.path.name
    try:
        parts = [_checked_part(save, rank, digest, disk) for rank, digest in enumerate(digests)]
        data = encode_shard_manifest(
            ShardManifest(
                step=save.step,
                serial=save.serial,
                token=save.token,
                owner=lease.owner,
                metric=metric,
                properties=dict(properties),
                files={part_name(rank): part.sha256 for rank, part in enumerate(parts)},
                tensors=join_parts(parts),
            )
        )
        with locked_folder(save.folder, name, 0, disk):
            check_lease(lease, str(save.path), disk)
            with atomic_write(save.manifest, len(data), disk) as file:
                disk.write(file, 0, memoryview(data))
            if retention is not None:
                _remove_old(save, retention, damaged, disk)
    except CheckpointError:  # perhaps because another group has removed the parts
        refuse_if_fenced(save, lease, disk)
        raise
    return save.path


def _checked_part(save: SaveFolder, rank: int, digest: str, disk: Disk) -> PartSummary:
    try:
        part = read_part(save, rank, disk)
    except CheckpointError as error:
        raise CheckpointError(
            f"{save.path} is not saved: {first_line(error)}\n"
            "check the disk of the folder, which all ranks must share"
        ) from error
    if part.sha256 != digest:
        raise CheckpointCorrupt(
            f"{save.path / part_name(rank)}: not what rank {rank} has written\n"
            "save the checkpoint again, and let no other program write into its folder"
        )
    return part


def refuse_if_fenced(save: SaveFolder, lease: Lease, disk: Disk = DISK) -> None:
    """Raise RunFenced if another group has taken the run over."""
    with locked_folder(save.folder, save.path.name, 0, disk):
        check_lease(lease, str(save.path), disk)


def discard(save: SaveFolder, *, disk: Disk = DISK) -> None:
    """Remove what a failed save has left; nothing if it was committed."""
    try:
        if is_committed(save, disk):
            return
    except OSError:
        return  # nothing is there, or nothing can be done
    remove_save(save, disk)


def _remove_old(
    new: SaveFolder, retention: Retention, damaged: Collection[Path], disk: Disk
) -> None:
    """Remove checkpoints that are no longer kept, and what earlier saves left unfinished.

    A checkpoint of the same step is replaced by the new one.
    """
    try:
        listed = [each for each in list_checkpoints(new.folder, disk=disk) if each.save]
    except CheckpointError as error:  # the next save tries again
        log.warning("%s", first_line(error))
        return
    for each in listed:
        if each.problem and each.committed:  # its parts may be of use to someone: it stays
            log.warning("%s", each.problem)
    good = [each for each in listed if not each.problem]
    replaced = [each for each in good if each.step == new.step and each.save != new]
    kept = retention.kept(
        [each for each in good if each.path not in damaged and each not in replaced]
    )
    for each in listed:
        unused = not each.committed or (each in good and each not in kept)
        if unused and each.save is not None and each.save != new:
            remove_save(each.save, disk)
