"""ReducerMemory: what a reducer keeps from one step to the next; a skipped step changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from onward.errors import CheckpointMismatch
from onward.programs.program import Array

Tensor = torch.Tensor

_FACTOR = "factor."  # names of factors in a state


@dataclass(frozen=True)
class Kept:
    """The values after a step; tensors are replaced, never changed, so that undoing is cheap."""

    error: Tensor | None = None  # the part of this process's gradients that was not sent
    scale: float = 1.0  # of the gradients that the error is of
    step: int = 0  # steps that were not skipped
    factors: tuple[Tensor, ...] = ()  # equal on all processes


class ReducerMemory:
    """The error of a bucket of `size` elements, and factors: before and after the last step.

    With error feedback, each process adds to its gradients what it did not send before, so that
    all of it is sent in the end: lossy steps are late, not wrong.
    """

    def __init__(self, size: int, error_feedback: bool) -> None:
        self._size, self._error_feedback = size, error_feedback
        self._before = self._now = Kept()

    @property
    def step(self) -> int:
        return self._now.step

    @property
    def factors(self) -> tuple[Tensor, ...]:
        return self._now.factors

    def begin(self) -> None:
        """Begin a step, to which `undo` returns."""
        self._before = self._now

    def add_error(self, vector: Tensor, scale: float) -> Tensor:
        """Begin a step: the vector plus what was not sent before, as a tensor of its own."""
        self.begin()
        error = self._now.error
        if error is None:
            return vector.clone()
        return torch.add(vector, error.to(vector), alpha=scale / self._now.scale)

    def keep(self, error: Tensor | None, scale: float, factors: Sequence[Tensor] = ()) -> None:
        """End a step whose gradients were finite."""
        kept = error if self._error_feedback else None
        self._now = Kept(kept, scale, self._now.step + 1, tuple(factors))

    def undo(self) -> None:
        """Return to what was kept before the last step."""
        self._now = self._before

    def state(self) -> dict[str, Array]:
        """What a checkpoint keeps; the arrays share memory that later steps do not change."""
        now = self._now
        found: dict[str, Array] = {"scale": np.array(now.scale), "step": np.array(now.step)}
        if now.error is not None:
            found["error"] = now.error.cpu().numpy()
        factors = {f"{_FACTOR}{i}": each.cpu().numpy() for i, each in enumerate(now.factors)}
        return found | factors

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state, unless it belongs to a bucket of another size."""
        error = state.get("error")
        if error is not None and error.shape != (self._size,):
            raise CheckpointMismatch(
                "the checkpoint does not fit: the error feedback of a gradient bucket has "
                f"{error.size} elements, this run needs {self._size}\n"
                "use the bucket size of the saved run"
            )
        factors = [state[f"{_FACTOR}{i}"] for i in range(_count(state))]
        self._before = self._now = Kept(
            None if error is None or not self._error_feedback else _copy(error),
            float(state.get("scale", 1.0)),
            int(state.get("step", 0)),
            tuple(_copy(each) for each in factors),
        )


def redistribute(states: Sequence[Mapping[str, Array]], size: int) -> list[dict[str, Array]]:
    """The states of `size` processes, from those of another number of processes.

    The errors of all processes are added, and each of the new ones keeps an equal part, so that
    nothing that is still to be sent is lost. Everything else is equal on all processes.

    >>> found = redistribute([{"error": np.array([1.0])}, {"error": np.array([3.0])}], 4)
    >>> [float(state["error"][0]) for state in found]
    [1.0, 1.0, 1.0, 1.0]
    """
    errors = [state["error"] for state in states if "error" in state]
    shared = {name: array for name, array in states[0].items() if name != "error"}
    if not errors:
        return [dict(shared) for _ in range(size)]
    part = sum(errors[1:], errors[0]) / errors[0].dtype.type(size)
    return [shared | {"error": part.copy()} for _ in range(size)]


def is_finite(*tensors: Tensor) -> bool:
    """Whether all elements are finite numbers.

    A sum is finite only if all of its terms are, and ten times as fast as looking at each; if it is
    not, finite terms may have overflowed.
    """
    return all(
        bool(torch.isfinite(each.sum())) or bool(torch.isfinite(each).all()) for each in tensors
    )


def _count(state: Mapping[str, Array]) -> int:
    return sum(name.startswith(_FACTOR) for name in state)


def _copy(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array))
