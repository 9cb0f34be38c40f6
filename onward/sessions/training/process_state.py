"""What one process of many keeps for itself, in a checkpoint: tensors `processes/{n}/{rank}/...`.

Such as gradients that compression has not sent yet. A checkpoint with them fits a session without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from onward.programs.program import Array

PREFIX = "processes/"


@runtime_checkable
class KeepsProcessState(Protocol):
    """An engine whose process keeps something for itself."""

    def process_state(self) -> dict[str, Array]:
        """Tensors of a checkpoint, under names that `PREFIX` begins."""
        ...

    def restore_process_state(self, tensors: Mapping[str, Array]) -> None:
        """Continue from tensors of a checkpoint; without any, as a new engine does.

        CheckpointMismatch if they do not fit. The weights are restored after it.
        """
        ...


def read_process_state(engine: Any) -> dict[str, Array]:
    """What this process keeps, by the name in a checkpoint."""
    return engine.process_state() if isinstance(engine, KeepsProcessState) else {}


def restore_process_state(engine: Any, tensors: Mapping[str, Array]) -> None:
    """Continue from what this process kept, among the tensors of a checkpoint."""
    if isinstance(engine, KeepsProcessState):
        engine.restore_process_state(tensors)
