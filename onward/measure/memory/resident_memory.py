"""This process's memory: how much is resident, how much was at most, and giving back what is free.

The counts are Linux's; elsewhere nobody can be asked, and `MEASURABLE` is False.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import sys
from pathlib import Path

MEASURABLE = sys.platform == "linux"

_STATUS = Path("/proc/self/status")
_MAPS = Path("/proc/self/maps")
_RESET_PEAK = "5"  # what /proc/self/clear_refs takes for it


def _free_memory_giver() -> object | None:
    """glibc's malloc_trim; other C libraries have none, and give back by themselves."""
    if not MEASURABLE:
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return None


_TRIM = _free_memory_giver()


def release_free_memory() -> None:
    """Return the heap's free pages to the system: what was read and packed on the way in."""
    if callable(_TRIM):
        _TRIM(0)


def resident() -> int:
    """Bytes of this process that lie in memory now."""
    return _read("VmRSS")


def most_resident() -> int:
    """Bytes of this process that lay in memory at most since `reset_peak`; 0: nobody can say."""
    return _read("VmHWM") if MEASURABLE else 0


def reset_peak() -> None:
    """Let `most_resident` begin anew."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return  # not allowed here: the peak is then the whole process's


def settle() -> None:
    """Make what follows the only thing that can change this process's memory.

    Files that are mapped (the engines' libraries) are read in, so that code which is used for the
    first time does not count; what is free goes back.
    """
    gc.collect()
    for first, last in _mapped_files():
        for address in range(first, last, mmap.PAGESIZE):
            ctypes.c_char.from_address(address).value  # noqa: B018  # reading it loads the page
    release_free_memory()


def _mapped_files() -> list[tuple[int, int]]:
    """The readable parts of memory that files lie behind."""
    parts = []
    for line in _MAPS.read_text().splitlines():
        places, rights, _, _, inode, *path = line.split(maxsplit=5)
        if rights.startswith("r") and inode != "0" and path and path[0].endswith((".so",)):
            first, last = (int(place, 16) for place in places.split("-"))
            parts.append((first, last))
    return parts


def _read(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found[1]) * 1024
