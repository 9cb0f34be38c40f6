"""Write sharded checkpoints without processes: the ranks are numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.disk import RealDisk
from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded.commit import commit
from onward.checkpoints.sharded.lease import Lease
from onward.checkpoints.sharded.part_files import write_part
from onward.checkpoints.sharded.pieces import Piece
from onward.checkpoints.sharded.save_folders import SaveFolder

Spans = Mapping[str, Sequence[tuple[int, int]]]


class UnsyncedDisk(RealDisk):
    """The disk of this machine, faster: nothing here survives a loss of power."""

    def sync(self, file: Any) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...


DISK = UnsyncedDisk()


def pieces(tensors: Mapping[str, Any], spans: Spans) -> dict[str, list[Piece]]:
    """Ranges of tensors as pieces."""
    return {
        name: [
            Piece(
                array=np.ascontiguousarray(tensors[name]).reshape(-1)[a:b],
                start=a,
                shape=tensors[name].shape,
            )
            for a, b in each
        ]
        for name, each in spans.items()
    }


def even_spans(tensors: Mapping[str, Any], ranks: int) -> list[dict[str, list[tuple[int, int]]]]:
    """Every tensor cut into equal parts, one for each rank."""
    return [
        {
            name: [(tensor.size * rank // ranks, tensor.size * (rank + 1) // ranks)]
            for name, tensor in tensors.items()
        }
        for rank in range(ranks)
    ]


def save(
    lease: Lease,
    tensors: Mapping[str, Any],
    step: int,
    layout: Sequence[Spans],
    *,
    serial: int = 1,
    properties: Mapping[str, Any] | None = None,
    retention: Retention | None = None,
    metric: float | None = None,
) -> Path:
    """Write the parts of all ranks, and commit them."""
    place = SaveFolder(lease.folder, step, lease.token, serial)
    digests = [
        write_part(place, rank, pieces(tensors, spans), disk=DISK)
        for rank, spans in enumerate(layout)
    ]
    return commit(
        place, digests, properties or {}, lease=lease, retention=retention, metric=metric, disk=DISK
    )
