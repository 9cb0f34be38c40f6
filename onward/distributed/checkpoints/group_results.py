"""Results that the processes of a group have in common: all have them, or all raise one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from onward.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    OnwardError,
    RunFenced,
)

T = TypeVar("T")

_KINDS: dict[str, type[OnwardError]] = {
    kind.__name__: kind for kind in (RunFenced, CheckpointCorrupt, CheckpointMissing)
}


class ObjectGroup(Protocol):
    """The part of a Communicator that checkpoints need."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather_objects(self, value: Any) -> list[Any]: ...


class OneProcess:
    """A group of only this process."""

    rank, size = 0, 1

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]


def gather_results(group: ObjectGroup, compute: Callable[[], T]) -> list[T]:
    """What each process computes, by rank; if one fails, all raise the error of the first."""
    results = gather_outcomes(group, compute)
    for rank, (_, kind, text) in enumerate(results):
        if kind:
            where = f"rank {rank}: " if group.size > 1 and kind != RunFenced.__name__ else ""
            raise _KINDS.get(kind, CheckpointError)(where + text)
    return [value for value, _, _ in results]


def gather_outcomes(group: ObjectGroup, compute: Callable[[], T]) -> list[tuple[T, str, str]]:
    """What each process computes, or the kind and the text of its error."""
    outcome: tuple[Any, str, str]
    try:
        outcome = compute(), "", ""
    except OnwardError as error:
        outcome = None, type(error).__name__, str(error)
    except Exception as error:  # the other processes wait for an answer, whatever happened
        outcome = None, type(error).__name__, f"{type(error).__name__}: {error}"
    return group.gather_objects(outcome)


def from_rank_0(group: ObjectGroup, compute: Callable[[], T]) -> T:
    """What the first process computes; the others do not compute it."""
    found: Any = gather_results(group, compute if group.rank == 0 else lambda: None)
    result: T = found[0]
    return result
