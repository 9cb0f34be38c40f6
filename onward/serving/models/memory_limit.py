"""The memory limit that the models of a server's process share."""

from __future__ import annotations

import logging
from pathlib import Path

from onward.errors import MemoryLimitExceeded, OnwardError
from onward.formatting import show_bytes
from onward.graph.files import load
from onward.graph.summary import file_bytes, summarize
from onward.measure.memory import resident_memory

_LOG = logging.getLogger("onward.serving")
_LARGE = 32 << 20  # bytes of a file: it has its weights inside


def check_memory(name: str, path: Path, limit: int) -> None:
    """Refuse a model whose files would exceed the memory limit of this process."""
    if not resident_memory.MEASURABLE:
        _LOG.warning("total_memory_limit has no effect: this system does not report memory in use")
        return
    used, needed = resident_memory.resident(), _weight_files(path)
    if used + needed > limit:
        raise MemoryLimitExceeded(
            f"model {name!r} needs {show_bytes(needed)} for its weights, but the server has "
            f"{show_bytes(used)} of {show_bytes(limit)} in use (total_memory_limit)\n"
            "unload a model, or raise the limit"
        )


def _weight_files(path: Path) -> int:
    """The bytes of a model's file, and of the files that hold its weights."""
    size = path.stat().st_size if path.is_file() else 0
    if size > _LARGE:
        return size
    try:
        return file_bytes(path, summarize(load(path)))
    except (OnwardError, OSError, ValueError):  # of another format, or to be refused when opened
        return size
