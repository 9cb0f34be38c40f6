"""Delete the empty trace files of sessions that could not be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onward.providers.options import SessionOptions


@contextmanager
def removing_trace_on_error(options: SessionOptions) -> Iterator[None]:
    """Delete the trace files that onnxruntime starts inside this context, if it raises."""
    if not options.enable_profiling:
        yield
        return
    prefix = Path(options.profile_file_prefix)
    before = set(prefix.parent.glob(f"{prefix.name}_*.json"))
    try:
        yield
    except BaseException:
        for path in set(prefix.parent.glob(f"{prefix.name}_*.json")) - before:
            path.unlink(missing_ok=True)
        raise
