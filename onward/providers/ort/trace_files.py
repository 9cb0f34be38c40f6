"""onnxruntime's traces: a session that could not be opened leaves no empty one behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onward.providers.options import SessionOptions


@contextmanager
def tidy(options: SessionOptions) -> Iterator[None]:
    """onnxruntime begins its trace before it looks at the model; where it refuses, that goes."""
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
