"""Arrays in .npz and .npy files, memory-mapped where they are stored without compression."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from onward.errors import DataError
from onward.graph.paths import check_exists
from onward.runner.data.in_memory import ArrayDataset
from onward.runner.data.line_index import unreadable

Array = np.ndarray[Any, Any]

_LOCAL_HEADER = 30  # bytes before the name of a member of a zip file
_BROKEN = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError)


def open_npz(path: Path, split: str | None = None) -> ArrayDataset:
    """The arrays of an .npz file as columns, or those of a split: x_train is x of "train".

    Arrays of `np.savez` are mapped in place; those of `np.savez_compressed` are loaded.
    """
    check_exists(path, "data file")
    ending = "" if split is None else f"_{split}"
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {
                name[: len(name) - len(ending)]: _read_member(path, archive, member)
                for name, member in _members(archive).items()
                if name.lower().endswith(ending)
            }
    except _BROKEN as error:
        raise _broken(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return ArrayDataset(arrays, path)


def npz_splits(path: Path, known: Sequence[str]) -> list[str]:
    """The splits of an .npz file whose arrays are all called x_train, y_train, x_test, ...

    None of a file with another array, or that cannot be read, which the reader then says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            endings = [name.lower().rpartition("_")[2] for name in _members(archive)]
    except (OSError, *_BROKEN):
        return []
    return [each for each in known if each in endings] if set(endings) <= set(known) else []


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an .npz file by name."""
    found = [each for each in archive.infolist() if each.filename.endswith(".npy")]
    return {each.filename.removesuffix(".npy"): each for each in found}


def open_npy(paths: Sequence[Path]) -> ArrayDataset:
    """Arrays of .npy files, memory-mapped, as columns that are named after the files."""
    return ArrayDataset({path.stem: map_npy(path) for path in paths}, paths[0].parent)


def map_npy(path: Path) -> Array:
    """The array of an .npy file, memory-mapped."""
    check_exists(path, "data file")
    try:
        return cast(Array, np.load(path, mmap_mode="r", allow_pickle=False))
    except _BROKEN as error:
        raise _broken(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        mapped = _map_member(path, member)
        if mapped is not None:
            return mapped
    with archive.open(member) as file:
        return cast(Array, np.lib.format.read_array(file, allow_pickle=False))


def _map_member(path: Path, member: zipfile.ZipInfo) -> Array | None:
    """A member that is stored as it is, memory-mapped; None if numpy cannot map its type."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
        # The directory at the file's end may give other lengths of name and extra field.
        name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        file.seek(member.header_offset + _LOCAL_HEADER + name + extra)
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            return None
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else (
            np.lib.format.read_array_header_2_0
        )  # fmt: skip
        shape, fortran, dtype = read(file)
        if dtype.hasobject or 0 in shape:
            return None
        order = "F" if fortran else "C"
        return np.memmap(path, dtype, "r", file.tell(), shape, order)  # type: ignore[call-overload,no-any-return]


def _broken(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path} is truncated, or not a numpy file of plain arrays: {error}\n"
        "write it again with np.savez or np.save; arrays of objects are not read"
    )
