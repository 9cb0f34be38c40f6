"""ShardedCheckpoint: read any range of any tensor of a checkpoint, whatever layout it was saved in.

    checkpoint = open_checkpoint("runs/7/step-000000000100-token-2-save-5")
    checkpoint.read_range("w", 1000, 2000)      # elements of the flattened tensor
    checkpoint.read_all().tensors["w"]          # for one process, or to export

Files of `Checkpoints`, which hold whole tensors, are opened in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.digested_json import read_digested_bytes
from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.file_header import Header
from onward.checkpoints.sharded.save_folders import MANIFEST, SaveFolder
from onward.checkpoints.sharded.shard_manifest import (
    ShardedTensor,
    ShardManifest,
    StoredPiece,
    decode_shard_manifest,
)
from onward.checkpoints.tensor_files import (
    Array,
    Checkpoint,
    StrPath,
    TensorMetadata,
    load_header,
    opened,
    read_header,
    tensor_type,
)
from onward.checkpoints.tensor_files import read_range as read_file_range
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from onward.graph.dtypes import BY_NUMPY
from onward.graph.paths import to_path


class ShardedCheckpoint:
    """A committed checkpoint. Reading verifies each piece once, in the pass that reads it."""

    def __init__(self, folder: Path, path: Path, manifest: ShardManifest, disk: Disk) -> None:
        self.path, self.manifest = path, manifest
        self._folder, self._disk = folder, disk
        self._headers: dict[str, Header] = {}
        self._verified: set[tuple[str, str]] = set()

    @property
    def step(self) -> int | None:
        return self.manifest.step

    @property
    def metric(self) -> float | None:
        return self.manifest.metric

    @property
    def properties(self) -> dict[str, Any]:
        return self.manifest.properties

    @property
    def tensors(self) -> dict[str, TensorMetadata]:
        """The type and shape of each tensor."""
        return {name: tensor.spec for name, tensor in self.manifest.tensors.items()}

    def read_range(
        self, name: str, start: int = 0, stop: int | None = None, *, into: Array | None = None
    ) -> Array:
        """Elements [start, stop) of a flattened tensor, in `into` or in a new array."""
        tensor = self._tensor(name)
        size = math.prod(tensor.spec.shape)
        stop = size if stop is None else stop
        if not 0 <= start <= stop <= size:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has {size} elements, and [{start}, {stop}) is asked "
                "for\nask for a range of the flattened tensor"
            )
        pieces = [p for p in tensor.pieces if p.start < stop and start < p.stop]
        headers = [self._header(piece, tensor.spec) for piece in pieces]
        dtype = _dtype(tensor.spec)
        found = np.empty(stop - start, dtype) if into is None else into
        _check_target(found, stop - start, dtype, name)
        for piece, header in zip(pieces, headers):
            low, high = max(start, piece.start), min(stop, piece.stop)
            self._read(piece, header, (low, high), found[low - start : high - start])
        return found

    def read_tensor(self, name: str) -> Array:
        """A whole tensor."""
        return self.read_range(name).reshape(self._tensor(name).spec.shape)

    def read_all(self) -> Checkpoint:
        """All tensors whole, as a checkpoint of one file has them."""
        tensors = {name: self.read_tensor(name) for name in self.manifest.tensors}
        digest = self.manifest.files.get(self.path.name, "")
        return Checkpoint(tensors, self.properties, self.step, self.metric, self.path, digest)

    @property
    def files(self) -> list[str]:
        """The names of its files, one for each rank that wrote it."""
        return list(self.manifest.files)

    def verify(self, files: Iterable[str] | None = None) -> None:
        """Verify every byte of some files (None: all), and that the others are the right ones.

        CheckpointCorrupt or CheckpointMissing names the file, and the tensor.
        """
        chosen = set(self.files if files is None else files)
        for file in self.files:
            header = self._file_header(file)
            if file not in chosen:
                continue
            with opened(self._folder / file, self._disk) as found:
                for entry in header.entries:
                    if (file, entry) not in self._verified:
                        read_file_range(found, entry, header, self._disk, (0, 0))
                        self._verified.add((file, entry))

    def trust(self) -> None:
        """Do not verify again: other processes have."""
        for tensor in self.manifest.tensors.values():
            self._verified |= {(piece.file, piece.entry) for piece in tensor.pieces}

    def _tensor(self, name: str) -> ShardedTensor:
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise CheckpointError(
                f"{self.path} has no tensor {name!r}\nit has {', '.join(self._some_names())}"
            ) from None

    def _some_names(self) -> Iterator[str]:
        names = list(self.manifest.tensors)
        yield from names[:5]
        if len(names) > 5:
            yield f"and {len(names) - 5} more"

    def _file_header(self, file: str) -> Header:
        """The header of a file, read once, which must be the one that the manifest lists."""
        if file not in self._headers:
            path = self._folder / file
            with opened(path, self._disk) as found:
                header = load_header(found, self._disk)
            if header.sha256 != self.manifest.files[file]:
                raise CheckpointCorrupt(
                    f"{path}: not damaged, but not the file that the manifest lists\n"
                    "read the checkpoint before it"
                )
            self._headers[file] = header
        return self._headers[file]

    def _header(self, piece: StoredPiece, spec: TensorMetadata) -> Header:
        header = self._file_header(piece.file)
        entry = header.entries.get(piece.entry)
        if (
            entry is None
            or entry.dtype != spec.dtype
            or math.prod(entry.shape) != piece.stop - piece.start
        ):
            raise CheckpointCorrupt(
                f"{self._folder / piece.file}: it has no such piece as {piece.entry!r}, which the "
                "manifest lists\nread the checkpoint before it"
            )
        return header

    def _read(self, piece: StoredPiece, header: Header, span: tuple[int, int], into: Array) -> None:
        within = span[0] - piece.start, span[1] - piece.start
        verified = (piece.file, piece.entry) in self._verified
        with opened(self._folder / piece.file, self._disk) as file:
            read_file_range(
                file, piece.entry, header, self._disk, within, into=into, verify=not verified
            )
        self._verified.add((piece.file, piece.entry))


def _check_target(array: Array, size: int, dtype: np.dtype[Any], name: str) -> None:
    if array.shape != (size,) or array.dtype != dtype or not array.flags.c_contiguous:
        raise CheckpointError(
            f"{size} elements of {dtype} of tensor {name!r} do not fit an array of {array.dtype}"
            f"{list(array.shape)}\ngive a contiguous array of one axis"
        )


def open_checkpoint(path: StrPath, *, disk: Disk = DISK) -> ShardedCheckpoint:
    """Open the folder of a sharded checkpoint, or a file of whole tensors."""
    path = to_path(path)
    if path.is_dir():
        return ShardedCheckpoint(path, path, _read_manifest(path, disk), disk)
    header = read_header(path, disk=disk)
    tensors = {
        name: ShardedTensor(spec, (StoredPiece(0, math.prod(spec.shape), path.name, name),))
        for name, spec in header.tensors.items()
    }
    files = {path.name: header.sha256}
    manifest = ShardManifest(
        header.step, header.serial, 0, "", header.metric, header.properties, files, tensors
    )
    return ShardedCheckpoint(path.parent, path, manifest, disk)


def read_save(save: SaveFolder, disk: Disk) -> ShardManifest:
    """The manifest of a save, which must be the one that its folder's name says."""
    found = _read_manifest(save.path, disk)
    if (found.step, found.token, found.serial) != (save.step, save.token, save.serial):
        raise CheckpointCorrupt(
            f"{save.path}: its manifest is of step {found.step}, token {found.token}, save "
            f"{found.serial}\ngive the folder the name that it was saved with"
        )
    return found


def _read_manifest(path: Path, disk: Disk) -> ShardManifest:
    where = path / MANIFEST
    try:
        return decode_shard_manifest(read_digested_bytes(where, disk))
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from error
    except ValueError as error:
        raise CheckpointCorrupt(f"{where} is damaged: {error}") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointMissing(
            f"{where} is missing: the save was not finished, or the file is lost\n"
            "read the checkpoint before it"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{where} cannot be read: {error.strerror or error}") from error


def _dtype(spec: TensorMetadata) -> np.dtype[Any]:
    """The numpy type of a tensor."""
    return tensor_type(BY_NUMPY[spec.dtype].safetensors).newbyteorder("=")
