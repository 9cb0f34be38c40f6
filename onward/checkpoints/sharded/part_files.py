"""Write the part of a checkpoint that one rank writes: a tensor file of pieces.

Its tensors are 1-D, named `tensor[start:stop]`; its properties say which pieces they are, so that
a part describes itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.sharded.pieces import Piece, Pieces, Span, listed_pieces
from onward.checkpoints.sharded.save_folders import SaveFolder, part_name
from onward.checkpoints.tensor_files import TensorMetadata, read_header, save_error, write
from onward.errors import CheckpointCorrupt, CheckpointError


@dataclass(frozen=True)
class PartSummary:
    """What a part holds: the pieces by tensor, and the SHA-256 that covers all of its bytes."""

    sha256: str
    specs: dict[str, TensorMetadata]
    spans: dict[str, list[Span]]


def entry_name(name: str, span: Span) -> str:
    """The name of a piece in its file.

    >>> entry_name("w", (0, 4))
    'w[0:4]'
    """
    return f"{name}[{span[0]}:{span[1]}]"


def write_part(save: SaveFolder, rank: int, pieces: Pieces, *, disk: Disk = DISK) -> str:
    """Write the pieces of one rank durably, and return the SHA-256 of their file.

    The checkpoint does not exist before `commit`. Empty pieces are left out, unless their tensor
    is empty.
    """
    tensors, properties = _contents(listed_pieces(pieces), rank)
    path = save.path / part_name(rank)
    try:
        disk.make_folder(save.path)
    except OSError as error:
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise save_error(path, error, "making a folder", size, disk) from error
    return write(path, tensors, properties, step=save.step, serial=save.serial, disk=disk)


def _contents(
    pieces: Mapping[str, Sequence[Piece]], rank: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors, listed = {}, []
    for name, each in pieces.items():
        kept = [piece for piece in each if len(piece.array) or not piece.spec_size]
        for piece in kept:
            tensors[entry_name(name, piece.span)] = piece.array
        if kept:
            spans = [list(piece.span) for piece in kept]
            listed.append({"name": name, "shape": list(kept[0].shape), "spans": spans})
    return tensors, {"rank": rank, "pieces": listed}


def read_part(save: SaveFolder, rank: int, disk: Disk = DISK) -> PartSummary:
    """What a rank has written, from the header of its file."""
    path = save.path / part_name(rank)
    header = read_header(path, disk=disk)
    if (header.step, header.serial, header.properties.get("rank")) != (
        save.step, save.serial, rank,
    ):  # fmt: skip
        raise CheckpointCorrupt(f"{path}: it is of another save\nsave the checkpoint again")
    specs, spans = {}, {}
    try:
        for row in header.properties["pieces"]:
            name, shape = row["name"], tuple(row["shape"])
            spans[name] = [(start, stop) for start, stop in row["spans"]]
            stored = [header.tensors[entry_name(name, span)] for span in spans[name]]
            specs[name] = TensorMetadata(stored[0].dtype, shape)
            if any(t.shape != (b - a,) for t, (a, b) in zip(stored, spans[name])):
                raise ValueError(f"a piece of {name!r} has another size")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointCorrupt(f"{path}: it is not a part of a checkpoint: {error!r}") from error
    return PartSummary(header.sha256, specs, spans)


def tensor_size(spec: TensorMetadata) -> int:
    """The number of elements of a tensor."""
    return math.prod(spec.shape)
