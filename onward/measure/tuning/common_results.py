"""Results that several processes have in common, when they measure together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onward.errors import OnwardError, ProviderError
from onward.message_text import first_line

T = TypeVar("T")
Gather = Callable[[Any], list[Any]]  # the values of all processes, by rank


def alone(value: Any) -> list[Any]:
    """The `Gather` of a process that measures by itself."""
    return [value]


def run_together(work: Callable[[], T], gather: Gather) -> T:
    """The result of this process's work, once it has succeeded in all processes.

    If it fails in any of them, all raise a ProviderError that names the first.
    """
    if gather is alone:
        return work()
    try:
        result, error = work(), ""
    except (OnwardError, OSError) as caught:
        error = first_line(caught) or type(caught).__name__
    for rank, text in enumerate(gather(error)):
        if text:
            raise ProviderError(f"process {rank}: {text}")
    return result
