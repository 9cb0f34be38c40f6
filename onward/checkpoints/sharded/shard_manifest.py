"""The manifest of a sharded checkpoint: where every range of every tensor is, and SHA-256s.

{"version": 1, "step": 100, "serial": 5, "token": 2, "owner": ..., "metric": null,
 "properties": {...}, "files": {"part-00000.safetensors": SHA-256, ...},
 "tensors": [{"name": "w", "dtype": "float32", "shape": [64, 32],
              "pieces": [["part-00000.safetensors", 0, 1024], ...]}, ...], "sha256": ...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.checkpoints.digested_json import LONGEST, decode_digested, encode_digested
from onward.checkpoints.file_header import check_properties
from onward.checkpoints.sharded.part_files import PartSummary, entry_name, tensor_size
from onward.checkpoints.sharded.save_folders import part_name
from onward.checkpoints.tensor_files import TensorMetadata
from onward.errors import CheckpointError
from onward.graph.dtypes import BY_NUMPY

VERSION = 1
_PART = re.compile(r"part-\d{5,9}\.safetensors")


@dataclass(frozen=True, order=True)
class StoredPiece:
    """Elements [start, stop) of a tensor: the whole of `entry` in `file`."""

    start: int
    stop: int
    file: str
    entry: str


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor, and its pieces in order, which hold every element once."""

    spec: TensorMetadata
    pieces: tuple[StoredPiece, ...]


@dataclass(frozen=True)
class ShardManifest:
    """All of a sharded checkpoint but the data."""

    step: int | None
    serial: int
    token: int
    owner: str
    metric: float | None
    properties: dict[str, Any]
    files: dict[str, str]  # SHA-256 of the header, which holds those of the tensors
    tensors: dict[str, ShardedTensor]


def join_parts(parts: Sequence[PartSummary]) -> dict[str, ShardedTensor]:
    """The tensors of some parts, by rank; CheckpointError if they do not hold each one whole."""
    specs: dict[str, TensorMetadata] = {}
    pieces: dict[str, list[StoredPiece]] = {}
    for rank, part in enumerate(parts):
        for name, spec in part.specs.items():
            if specs.setdefault(name, spec) != spec:
                raise CheckpointError(
                    f"tensor {name!r} is {spec} in {part_name(rank)}, and {specs[name]} in another "
                    "part\nsave the same model on every rank"
                )
            pieces.setdefault(name, []).extend(
                StoredPiece(*span, part_name(rank), entry_name(name, span))
                for span in part.spans[name]
            )
    tensors = {
        name: ShardedTensor(spec, tuple(sorted(pieces[name]))) for name, spec in specs.items()
    }
    for name, tensor in tensors.items():
        _check_cover(name, tensor)
    return tensors


def _check_cover(name: str, tensor: ShardedTensor) -> None:
    """The pieces of a tensor hold each of its elements once."""
    place, size = 0, tensor_size(tensor.spec)
    for piece in tensor.pieces:
        if piece.start != place:
            what = "no part" if piece.start > place else "several parts"
            low, high = sorted((place, piece.start))
            raise CheckpointError(
                f"elements [{low}, {high}) of tensor {name!r} are in {what}\n"
                "let the ranks write every element once: plan_writes gives the ranges"
            )
        place = piece.stop
    if place != size or not tensor.pieces:
        raise CheckpointError(
            f"elements [{place}, {size}) of tensor {name!r} are in no part\n"
            "let the ranks write every element once: plan_writes gives the ranges"
        )


def encode_shard_manifest(manifest: ShardManifest) -> bytes:
    """The manifest's bytes."""
    check_properties(manifest.properties)
    body = {
        "version": VERSION,
        "step": manifest.step,
        "serial": manifest.serial,
        "token": manifest.token,
        "owner": manifest.owner,
        "metric": manifest.metric,
        "properties": manifest.properties,
        "files": manifest.files,
        "tensors": [
            {
                "name": name,
                "dtype": tensor.spec.dtype,
                "shape": list(tensor.spec.shape),
                "pieces": [[piece.file, piece.start, piece.stop] for piece in tensor.pieces],
            }
            for name, tensor in manifest.tensors.items()
        ],
    }
    data = encode_digested(body, ordered=True)
    if len(data) > LONGEST:
        raise CheckpointError(
            f"a manifest of {len(data):,} bytes, more than the {LONGEST:,} that are allowed\n"
            "keep large properties as tensors"
        )
    return data


def decode_shard_manifest(data: bytes) -> ShardManifest:
    """The manifest; ValueError if it is damaged."""
    body = decode_digested(data, ordered=True)
    if body.get("version") != VERSION:
        raise CheckpointError(
            f"a manifest of version {body.get('version')}, and this Onward reads {VERSION}\n"
            "use the Onward that wrote it, or a newer one"
        )
    try:
        files = body["files"]
        if not all(_PART.fullmatch(name) for name in files):
            raise ValueError("a file has another name than a part's")
        tensors = {row["name"]: _stored_tensor(row, files) for row in body["tensors"]}
        return ShardManifest(
            body["step"], body["serial"], body["token"], body["owner"], body["metric"],
            body["properties"], files, tensors,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a manifest: {error!r}") from error


def _stored_tensor(row: Mapping[str, Any], files: Mapping[str, str]) -> ShardedTensor:
    name, shape = row["name"], tuple(row["shape"])
    numbers = [*shape, *(place for _, *span in row["pieces"] for place in span)]
    known = row["dtype"] in BY_NUMPY and BY_NUMPY[row["dtype"]].safetensors
    if not known or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"the entry of {name!r} is broken")
    pieces = [
        StoredPiece(start, stop, file, entry_name(name, (start, stop)))
        for file, start, stop in row["pieces"]
    ]
    tensor = ShardedTensor(TensorMetadata(row["dtype"], shape), tuple(pieces))
    if any(piece.file not in files or piece.start > piece.stop for piece in pieces):
        raise ValueError(f"the entry of {name!r} is broken")
    _check_cover(name, tensor)
    return tensor
