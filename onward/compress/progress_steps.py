"""The type of callbacks that show the progress of long work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float | None], None]  # what begins now, steps done, steps in all


def no_progress(step: str, done: float, total: float | None) -> None:
    """Show nothing."""
