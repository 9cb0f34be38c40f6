"""The memory limit that the models of a server's process share."""

from __future__ import annotations

from onward.errors import MemoryLimitExceeded
from onward.formatting import show_bytes
from onward.measure.memory import resident_memory
from onward.serving.models.model_folder import ModelFiles, fingerprint


def check_memory(files: ModelFiles, number: int, limit: int | None) -> None:
    """Refuse a version whose files do not fit into what is left of a limit of this process."""
    if limit is None or not resident_memory.MEASURABLE:
        return
    needed = sum(size for _, size, *_ in fingerprint(files, number))
    used = resident_memory.resident()
    if used + needed > limit:
        raise MemoryLimitExceeded(
            f"model {files.name!r} needs {show_bytes(needed)} for its weights, but the server has "
            f"{show_bytes(used)} of {show_bytes(limit)} in use (total_memory_limit)\n"
            "unload a model, or raise the limit"
        )
