"""Read and write checkpoints: files of named tensors and JSON properties, in safetensors format.

    write("step.safetensors", {"w": w}, {"epoch": 3})
    read("step.safetensors").tensors["w"]

Writing is atomic: the complete file appears under its name, or nothing does. Reading verifies every
byte by the SHA-256 digests in the header (file_header.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.disk import DISK, Disk, OpenFile
from onward.checkpoints.file_header import (
    Header,
    assign_places,
    check_properties,
    decode_header,
    encode_header,
)
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from onward.graph.paths import (
    explain_failure,
    explain_read_failure,
    is_special,
    suggest_path,
    to_path,
)
from onward.graph.safetensors_header import DTYPE_NAMES, HeaderError, header_length, numpy_type

Array = np.ndarray[Any, Any]
StrPath = str | os.PathLike[str]

_PIECE = 1 << 22  # bytes that are hashed and written at once
_TEMPORARY = re.compile(r"\.onward-[0-9a-f]{16}\.part")
_LAST_PHASE = "syncing the folder"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint file: writable tensors, properties, step and metric."""

    tensors: dict[str, Array]
    properties: dict[str, Any]
    step: int | None = None
    metric: float | None = None
    path: Path | None = None
    sha256: str = ""  # of the header, which holds the digests of the tensors


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor's type and shape, without the tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HeaderSummary:
    """A checkpoint without its tensors' data; `sha256` covers the whole file."""

    tensors: dict[str, TensorMetadata]
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
    """Write a checkpoint, in place of a file of that name, and return its SHA-256.

    It is durable when this returns. The tensors are not copied in memory, so they must not change
    meanwhile.

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
    with atomic_write(path, size, disk) as file:
        digests = {
            name: _write_tensor(file, len(blank) + entry.begin, tensors[name], disk)
            for name, entry in sorted(header.entries.items(), key=lambda item: item[1].begin)
        }
        start, digest = encode_header(dataclasses.replace(header, digests=digests))
        disk.write(file, 0, memoryview(start))
    return digest


@contextlib.contextmanager
def atomic_write(path: Path, size: int, disk: Disk) -> Iterator[OpenFile]:
    """A new file to write; renamed to `path` when it is complete and durable, else removed."""
    doing = "making room"
    file: OpenFile | None = None
    try:
        _check_target(path)
        remove_abandoned_files(path.parent, disk)
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
            _try_remove(done.path, disk)
            raise
        doing = _LAST_PHASE
        disk.sync_folder(path.parent)
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(OSError):
                disk.close(file)
            _try_remove(file.path, disk)
        if isinstance(error, OSError):
            raise save_error(path, error, doing, size, disk) from error
        raise


def _check_target(path: Path) -> None:
    """Refuse what a file cannot take the place of, before anything is written."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if is_special(path):
        raise CheckpointError(
            f"{path} is not saved: it is a device, a pipe or a socket\ngive the name of a file"
        )


def _create(folder: Path, disk: Disk) -> OpenFile:
    for _ in range(8):
        with contextlib.suppress(FileExistsError):  # removed by another process at once
            return disk.create(folder / f".onward-{secrets.token_hex(8)}.part")
    return disk.create(folder / f".onward-{secrets.token_hex(8)}.part")


def _try_remove(path: Path, disk: Disk) -> None:
    with contextlib.suppress(OSError):
        disk.remove(path)


def remove_abandoned_files(folder: Path, disk: Disk) -> None:
    """Remove the temporary files of writers that were killed."""
    for name in disk.names(folder):
        if _TEMPORARY.fullmatch(name):
            with contextlib.suppress(OSError):  # another process may have removed it
                if disk.is_abandoned(folder / name):
                    disk.remove(folder / name)


def _write_tensor(file: OpenFile, offset: int, tensor: Array, disk: Disk) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(tensor):
        digest.update(piece)
        disk.write(file, offset, piece)
        offset += len(piece)
    return digest.hexdigest()


def _pieces(tensor: Array) -> Iterator[memoryview]:
    """The bytes of a tensor in C order, little-endian; copied piece by piece if not contiguous."""
    little = tensor.dtype.newbyteorder("<")
    ready = tensor.flags.c_contiguous and tensor.dtype == little
    flat = tensor.reshape(-1) if ready else tensor.flat
    count = max(_PIECE // tensor.dtype.itemsize, 1)
    for start in range(0, tensor.size, count):
        piece = np.ascontiguousarray(flat[start : start + count], little)
        yield piece.view(np.uint8).data


def save_error(path: Path, error: OSError, doing: str, size: int, disk: Disk) -> CheckpointError:
    """The error of a save that failed: the reason, and what to do."""
    folder, why = path.parent, error.strerror or str(error)
    text = f"{path} is not saved: {why} (while {doing}); what was saved before is untouched\n"
    if doing == _LAST_PHASE:
        text = f"{path} is written, but a loss of power may undo it: {why} (while {doing})\n"
    if error.errno in _FULL:
        return CheckpointError(text + _space_advice(folder, size, disk))
    if error.errno in _FORBIDDEN:
        return CheckpointError(text + f"let this process write in {folder}")
    if error.errno == errno.ENOENT:
        return CheckpointError(text + f"make the folder {folder} first")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG):
        return CheckpointError(text + explain_failure(path, error)[1])
    return CheckpointError(text + f"check the disk of {folder}, or save in another folder")


def _space_advice(folder: Path, size: int, disk: Disk) -> str:
    try:
        free = disk.free(folder)
    except OSError:
        return f"free {size:,} bytes on the disk of {folder}"
    if free >= size:  # a quota, or a file of another process that was removed since
        return f"free {size:,} bytes on the disk of {folder}, or raise this process's quota"
    return f"free {size - free:,} bytes on the disk of {folder}: {size:,} are needed"


def read_header(path: StrPath, *, disk: Disk = DISK) -> HeaderSummary:
    """Read names, types and shapes of the tensors, and the properties, without the data."""
    with opened(to_path(path), disk) as file:
        header = load_header(file, disk)
    specs = {
        name: TensorMetadata(entry.dtype, entry.shape) for name, entry in header.entries.items()
    }
    return HeaderSummary(
        specs, header.properties, header.step, header.metric, header.serial, header.sha256
    )


look = read_header  # its name before 0.2; removed in the release after


def read(path: StrPath, *, disk: Disk = DISK) -> Checkpoint:
    """Read a checkpoint and verify all of it; CheckpointCorrupt names what is damaged."""
    path = to_path(path)
    with opened(path, disk) as file:
        header = load_header(file, disk)
        tensors = {
            name: read_range(file, name, header, disk).reshape(entry.shape)
            for name, entry in header.entries.items()
        }
    return Checkpoint(tensors, header.properties, header.step, header.metric, path, header.sha256)


@contextlib.contextmanager
def opened(path: Path, disk: Disk) -> Iterator[OpenFile]:
    """A file that is open to read; CheckpointMissing if there is none."""
    try:
        file = disk.open(path)
        try:
            yield file
        finally:
            disk.close(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointMissing(f"{path}: there is no such file\n{suggest_path(path)}") from error
    except OSError as error:
        if os.path.isdir(path):
            raise CheckpointError(
                f"{path} cannot be read: not an ordinary file, but a folder\n"
                "give the path of a file in it, or read it with Checkpoints(folder)"
            ) from error
        why = explain_read_failure(path, error)
        raise CheckpointError(f"{path} cannot be read: {why}") from error


def load_header(file: OpenFile, disk: Disk) -> Header:
    """The header of an open checkpoint file, verified."""
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


def read_range(
    file: OpenFile,
    name: str,
    header: Header,
    disk: Disk,
    span: tuple[int, int] | None = None,
    *,
    into: Array | None = None,
    verify: bool = True,
) -> Array:
    """Elements [start, stop) of a flattened tensor (None: all), read in one pass.

    To verify it, all of the tensor is read, by a small buffer where it is not wanted.
    """
    entry, digest = header.entries[name], hashlib.sha256()
    kind = tensor_type(entry.code)
    start, stop = span or (0, (entry.end - entry.begin) // kind.itemsize)
    tensor = np.empty(stop - start, kind.newbyteorder("=")) if into is None else into
    wanted = tensor.view(np.uint8).data
    first, last = start * kind.itemsize, stop * kind.itemsize
    begin, end = (0, entry.end - entry.begin) if verify else (first, last)
    buffer = memoryview(bytearray(_PIECE if (begin, end) != (first, last) else 0))
    place = header.length + entry.begin
    for at in range(begin, end, _PIECE):
        to = min(at + _PIECE, end)
        low, high = max(at, first), min(to, last)
        whole = low == at and high == to
        piece = wanted[at - first : to - first] if whole else buffer[: to - at]
        if disk.read(file, place + at, piece) < len(piece):
            raise CheckpointCorrupt(
                f"{file.path}: cut short within tensor {name!r}\nread the checkpoint before it"
            )
        if verify:
            digest.update(piece)
        if not whole and low < high:
            wanted[low - first : high - first] = piece[low - at : high - at]
    if verify and digest.hexdigest() != header.digests[name]:
        raise CheckpointCorrupt(
            f"{file.path}: tensor {name!r} is damaged: its SHA-256 does not match\n"
            "read the checkpoint before it"
        )
    return tensor.byteswap(inplace=True) if sys.byteorder == "big" else tensor


def tensor_type(code: str) -> np.dtype[Any]:
    """The numpy type of a safetensors code; CheckpointError if it needs a package."""
    try:
        return numpy_type(code)
    except ImportError as error:
        raise CheckpointError(
            f"tensors of {DTYPE_NAMES[code]} need a package that is not here\n"
            "install it with: pip install ml_dtypes"
        ) from error
