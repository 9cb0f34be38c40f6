"""Resident memory of this process: now, at its peak, and free pages returned to the system.

The numbers come from Linux's /proc; on other systems there are none, and `MEASURABLE` is False.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import resource

MEASURABLE = sys.platform == "linux"

_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")  # shorter: quick to read
_MACHINE = Path("/proc/meminfo")
_MAPS = Path("/proc/self/maps")
_RESET_PEAK = "5"  # written to /proc/self/clear_refs


def _find_malloc_trim() -> object | None:
    """glibc's malloc_trim; other C libraries have none, and return free pages by themselves."""
    if not MEASURABLE:
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return None


_TRIM = _find_malloc_trim()


def release_free_memory() -> None:
    """Return the heap's free pages to the system, such as those that opening a model used."""
    if callable(_TRIM):
        _TRIM(0)


def resident() -> int:
    """Bytes of this process that are in memory now."""
    _, pages, *_ = _STATM.read_bytes().split()
    return int(pages) * mmap.PAGESIZE


def most_resident() -> int:
    """The peak of `resident` since `reset_peak`; 0 where it cannot be measured."""
    return _read(_STATUS, "VmHWM") if MEASURABLE else 0


def reset_peak() -> None:
    """Start a new peak for `most_resident`."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return  # not allowed here: the peak is then that of the whole process


@contextmanager
def limited_to_available() -> Iterator[None]:
    """Let this process allocate at most the memory that the machine has available."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _read(_STATUS, "VmData") + _read(_MACHINE, "MemAvailable")
    known = [each for each in (soft, hard, limit) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def settle() -> None:
    """Bring this process into a state in which only what follows changes its memory.

    Mapped files (the engines' libraries) are read in, so that code which is used for the first
    time does not count; free pages are returned.
    """
    gc.collect()
    for first, last in _mapped_libraries():
        for address in range(first, last, mmap.PAGESIZE):
            ctypes.c_char.from_address(address).value  # noqa: B018  # reading it loads the page
    release_free_memory()


def _mapped_libraries() -> list[tuple[int, int]]:
    """The address ranges (first, end) that shared libraries are mapped to for reading."""
    ranges = []
    for line in _MAPS.read_text().splitlines():
        addresses, rights, _, _, inode, *path = line.split(maxsplit=5)
        if rights.startswith("r") and inode != "0" and path and path[0].endswith(".so"):
            first, end = (int(address, 16) for address in addresses.split("-"))
            ranges.append((first, end))
    return ranges


def _read(file: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{file} has no {name}")
    return int(found[1]) * 1024
