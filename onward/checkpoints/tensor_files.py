"""A checkpoint is one file of named tensors and JSON properties, in safetensors' format.

    write("step.safetensors", {"w": w}, {"epoch": 3})
    read("step.safetensors").tensors["w"]

The file appears whole under its name or not at all, whatever happens in between; reading it checks
each byte of it against the SHA-256 that were taken while it was written (see layout.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.disk import DISK, Disk, Handle
from onward.checkpoints.file_header import (
    Header,
    assign_places,
    check_properties,
    decode_header,
    encode_header,
)
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from onward.graph.paths import explain_failure, suggest_path, to_path
from onward.graph.safetensors_header import HeaderError, header_length, numpy_type

Array = np.ndarray[Any, Any]
StrPath = str | os.PathLike[str]

_PIECE = 1 << 22  # bytes that are hashed and written together
_ASIDE = re.compile(r"\.onward-[0-9a-f]{16}\.part")
_LAST = "syncing the folder"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: tensors that the reader may write to, properties, and when it was."""

    tensors: dict[str, Array]
    properties: dict[str, Any]
    step: int | None = None
    metric: float | None = None
    path: Path | None = None
    sha256: str = ""  # stands for all of it


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's type and shape, without the tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What a file says of itself before its tensors; `sha256` stands for all of it."""

    tensors: dict[str, TensorSpec]
    properties: dict[str, Any]
    step: int | None
    metric: float | None
    serial: int
    sha256: str


def write(
    path: StrPath,
    tensors: Mapping[str, Array],
    properties: Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
    metric: float | None = None,
    serial: int = 0,
    disk: Disk = DISK,
) -> str:
    """Write a checkpoint in place of the one that `path` may have, and return its SHA-256.

    It is durable when this returns. The tensors are written as they lie, with no second copy of
    them in memory; nobody may change them meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = write(f"{folder}/c", {"w": np.arange(3)}, {"epoch": 3})
    ...     read(f"{folder}/c").tensors["w"].tolist()
    [0, 1, 2]
    """
    path = to_path(path)
    check_properties(properties or {})
    header = Header(assign_places(tensors), dict(properties or {}), step, metric, serial)
    blank, _ = encode_header(header)
    size = len(blank) + sum(tensor.nbytes for tensor in tensors.values())
    with written_aside(path, size, disk) as file:
        digests = {
            name: _write_tensor(file, len(blank) + entry.begin, tensors[name], disk)
            for name, entry in sorted(header.entries.items(), key=lambda item: item[1].begin)
        }
        start, digest = encode_header(dataclasses.replace(header, digests=digests))
        disk.write(file, 0, memoryview(start))
    return digest


@contextlib.contextmanager
def written_aside(path: Path, size: int, disk: Disk) -> Iterator[Handle]:
    """A new file to fill; it takes the name `path` when it is whole and durable, or goes away."""
    doing = "making room"
    file: Handle | None = None
    try:
        tidy(path.parent, disk)
        doing = "creating a file"
        file = _create(path.parent, disk)
        doing = "writing"
        yield file
        doing = "syncing"
        disk.sync(file)
        doing = "renaming"
        done, file = file, None
        try:
            disk.commit(done, path)
        except BaseException:
            _forget(done.path, disk)
            raise
        doing = _LAST
        disk.sync_folder(path.parent)
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(OSError):
                disk.close(file)
            _forget(file.path, disk)
        if isinstance(error, OSError):
            raise cannot_save(path, error, doing, size, disk) from error
        raise


def _create(folder: Path, disk: Disk) -> Handle:
    for _ in range(8):
        with contextlib.suppress(FileExistsError):  # tidied away the moment it was there
            return disk.create(folder / f".onward-{secrets.token_hex(8)}.part")
    return disk.create(folder / f".onward-{secrets.token_hex(8)}.part")


def _forget(path: Path, disk: Disk) -> None:
    with contextlib.suppress(OSError):
        disk.remove(path)


def tidy(folder: Path, disk: Disk) -> None:
    """Remove what writers left behind that were killed; those that live keep theirs."""
    for name in disk.names(folder):
        if _ASIDE.fullmatch(name):
            with contextlib.suppress(OSError):  # another one may be as tidy
                if disk.is_abandoned(folder / name):
                    disk.remove(folder / name)


def _write_tensor(file: Handle, offset: int, tensor: Array, disk: Disk) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(tensor):
        digest.update(piece)
        disk.write(file, offset, piece)
        offset += len(piece)
    return digest.hexdigest()


def _pieces(tensor: Array) -> Iterator[memoryview]:
    """The bytes of a tensor in order, little-endian; copied by the piece where they lie apart."""
    little = tensor.dtype.newbyteorder("<")
    whole = tensor.flags.c_contiguous and tensor.dtype == little
    flat = tensor.reshape(-1) if whole else tensor.flat
    count = max(_PIECE // tensor.dtype.itemsize, 1)
    for start in range(0, tensor.size, count):
        piece = np.ascontiguousarray(flat[start : start + count], little)
        yield piece.view(np.uint8).data


def cannot_save(path: Path, error: OSError, doing: str, size: int, disk: Disk) -> CheckpointError:
    """What stood in the way of saving, and what to do about it."""
    folder, why = path.parent, error.strerror or str(error)
    text = f"{path} is not saved: {why} (while {doing}); what was saved before is untouched\n"
    if doing == _LAST:
        text = f"{path} is written, but a loss of power may undo it: {why} (while {doing})\n"
    if error.errno in _FULL:
        return CheckpointError(text + _room(folder, size, disk))
    if error.errno in _FORBIDDEN:
        return CheckpointError(text + f"let this process write in {folder}")
    if error.errno == errno.ENOENT:
        return CheckpointError(text + f"make the folder {folder} first")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return CheckpointError(text + explain_failure(path, error)[1])
    return CheckpointError(text + f"see to the disk of {folder}, or save in another folder")


def _room(folder: Path, size: int, disk: Disk) -> str:
    try:
        free = disk.free(folder)
    except OSError:
        return f"free {size:,} bytes on the disk of {folder}"
    if free >= size:  # a quota, or somebody else's file that is gone again
        return f"free {size:,} bytes on the disk of {folder}, or have this process allowed as many"
    return f"free {size - free:,} bytes on the disk of {folder}: {size:,} are needed"


def look(path: StrPath, *, disk: Disk = DISK) -> Look:
    """Names, types and shapes of the tensors, and the properties, without the tensors' data."""
    with _opened(to_path(path), disk) as file:
        header = _read_header(file, disk)
    specs = {name: TensorSpec(entry.dtype, entry.shape) for name, entry in header.entries.items()}
    return Look(specs, header.properties, header.step, header.metric, header.serial, header.sha256)


def read(path: StrPath, *, disk: Disk = DISK) -> Checkpoint:
    """Read a checkpoint, all of it checked; what is damaged is named by CheckpointCorrupt."""
    path = to_path(path)
    with _opened(path, disk) as file:
        header = _read_header(file, disk)
        tensors = {name: _read_tensor(file, name, header, disk) for name in header.entries}
    return Checkpoint(tensors, header.properties, header.step, header.metric, path, header.sha256)


@contextlib.contextmanager
def _opened(path: Path, disk: Disk) -> Iterator[Handle]:
    try:
        file = disk.open(path)
        try:
            yield file
        finally:
            disk.close(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointMissing(f"{path}: there is no such file\n{suggest_path(path)}") from error
    except OSError as error:
        if path.is_dir():
            raise CheckpointError(
                f"{path} cannot be read: not an ordinary file, but a folder\n"
                "give the path of a file in it, or read it with Checkpoints(folder)"
            ) from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(file: Handle, disk: Disk) -> Header:
    where, size = str(file.path), disk.size(file)
    prefix = bytearray(8)
    got = disk.read(file, 0, memoryview(prefix))
    try:
        text = bytearray(header_length(bytes(prefix[:got]), size))
    except HeaderError as error:
        raise CheckpointCorrupt(
            f"{where}: {error}: it is damaged or cut short, or of another kind"
        ) from error
    disk.read(file, 8, memoryview(text))
    return decode_header(bytes(prefix), bytes(text), size, where)


def _read_tensor(file: Handle, name: str, header: Header, disk: Disk) -> Array:
    entry, digest = header.entries[name], hashlib.sha256()
    try:
        tensor = np.empty(entry.shape, numpy_type(entry.code))
    except ImportError as error:
        raise CheckpointError(
            f"tensors of {entry.dtype} need a package that is not here\n"
            "install it with: pip install ml_dtypes"
        ) from error
    data = tensor.reshape(-1).view(np.uint8).data
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        disk.read(file, header.length + entry.begin + start, piece)
        digest.update(piece)
    if digest.hexdigest() != header.digests[name]:
        raise CheckpointCorrupt(
            f"{file.path}: tensor {name!r} is damaged: its SHA-256 is another one\n"
            "read the checkpoint before it"
        )
    return tensor.astype(tensor.dtype.newbyteorder("="), copy=False)
