"""The seam between a model's queue and the engine: an instance runs one batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from onward.serving.requests import Array, TensorSpec


class Instance(Protocol):
    """A loaded model that runs in this process, in a worker process, or as a Python function.

    `run` blocks; each instance is run by a thread of its own. Strings are object arrays of str.
    FeedError and NodeFailed: these feeds cannot be run, others can. WorkerDied: its process ended.
    """

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    @property
    def outputs(self) -> Sequence[TensorSpec]: ...

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        ...

    def close(self) -> None: ...


def interrupt_run(instance: Instance) -> None:
    """End the run of an instance early, if it can: nobody waits for it any more."""
    interrupt = getattr(instance, "interrupt", None)
    if interrupt is not None:
        interrupt()


def is_compiling(instance: Instance | None) -> bool:
    """Whether an instance runs shapes for the first time that its engine compiles for."""
    return bool(getattr(instance, "is_compiling", False))


def is_computation(instance: Instance) -> bool:
    """Whether a run computes in this process, and waits for nothing else."""
    return bool(getattr(instance, "is_computation", False))
