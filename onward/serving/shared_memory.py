"""System shared memory that clients register: tensors that do not pass through a socket.

regions = SharedMemoryRegions()
regions.register("input_data", "/input_simple", 0, 64)
regions.read("input_data", 0, 64) -> memoryview

Regions are read and written as files of /dev/shm, not mapped: a client that shortens its memory
would end the server with SIGBUS, and one that changes it could do so after the checks of a request.
multiprocessing's class is not used: its resource tracker removes the client's memory at the end.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import NotSupported, RequestInvalid

FOLDER = Path("/dev/shm")
MAX_REGIONS = 1024  # each holds an open file


@dataclass(frozen=True, slots=True)
class _Region:
    key: str
    offset: int
    byte_size: int
    file: int  # its descriptor


class SharedMemoryRegions:
    """Regions by the names that clients gave them."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._regions: dict[str, _Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open `byte_size` bytes at `offset` of the shared memory object `key`."""
        if not name:
            raise RequestInvalid("a shared memory region needs a name")
        if name in self._regions:
            raise RequestInvalid(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            raise RequestInvalid(
                f"more than {MAX_REGIONS:,} shared memory regions: unregister some"
            )
        if offset < 0 or byte_size <= 0:
            raise RequestInvalid(
                f"shared memory region '{name}' has the offset {offset} and the size {byte_size}\n"
                "the offset must be 0 or more, the size 1 or more"
            )
        if not self._folder.is_dir():
            raise NotSupported(f"the server's system has no shared memory in {self._folder}")
        path = self._folder / _file_name(name, key)
        file = _open_region(path, name, key, offset + byte_size)
        self._regions[name] = _Region(key, offset, byte_size, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all without a name. A name that is not registered is ignored."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                os.close(region.file)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Name, key, offset and byte_size of one region, or of all."""
        if name:
            self._region(name)
        return [
            {"name": each, "key": found.key, "offset": found.offset, "byte_size": found.byte_size}
            for each, found in self._regions.items()
            if name in ("", each)
        ]

    def check(self, name: str, offset: int, byte_size: int) -> None:
        """Refuse a part of memory that is not within a region."""
        self._place(name, offset, byte_size)

    def read(self, name: str, offset: int, byte_size: int) -> memoryview:
        """A copy of bytes of a region."""
        file, at = self._place(name, offset, byte_size)
        data = bytearray(byte_size)
        view, count = memoryview(data), 0
        while count < byte_size:
            found = os.preadv(file, [view[count:]], at + count)
            if not found:
                raise RequestInvalid(f"shared memory region '{name}' was made shorter")
            count += found
        return view

    def write(self, name: str, offset: int, data: Any) -> None:
        """Copy bytes into a region."""
        view, count = memoryview(data), 0
        view = view.cast("B") if view.nbytes else memoryview(b"")
        file, at = self._place(name, offset, view.nbytes)
        while count < view.nbytes:
            count += os.pwrite(file, view[count:], at + count)

    def close(self) -> None:
        """Close all regions; the clients' memory stays."""
        self.unregister()

    def _region(self, name: str) -> _Region:
        region = self._regions.get(name)
        if region is None:
            raise RequestInvalid(f"Unable to find shared memory region: '{name}'")
        return region

    def _place(self, name: str, offset: int, byte_size: int) -> tuple[int, int]:
        """The file and the position in it of a part of a region."""
        region = self._region(name)
        if offset < 0 or byte_size < 0 or offset + byte_size > region.byte_size:
            raise RequestInvalid(
                f"Invalid offset + byte size for shared memory region: '{name}' has "
                f"{region.byte_size:,} bytes, {byte_size:,} at {offset:,} were asked for"
            )
        return region.file, region.offset + offset


def _open_region(path: Path, name: str, key: str, end: int) -> int:
    """Open a regular file that has at least `end` bytes."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise RequestInvalid(
            f"Unable to open shared memory region: '{name}', key '{key}': {reason}"
        ) from None
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and end <= found.st_size:
        return file
    os.close(file)
    if not stat.S_ISREG(found.st_mode):
        raise RequestInvalid(f"Unable to open shared memory region: '{key}' is not memory")
    raise RequestInvalid(
        f"failed to register shared memory region '{name}': invalid args: '{key}' has "
        f"{found.st_size:,} bytes, the region ends at {end:,}"
    )


def _file_name(name: str, key: str) -> str:
    """A key is "/name" as for shm_open: one component of a path, which may not lead elsewhere."""
    file = key.removeprefix("/")
    if not file or "/" in file or "\0" in file or file in (".", "..") or len(file.encode()) > 255:
        raise RequestInvalid(f"shared memory region '{name}': the key '{key}' is not a valid name")
    return file
