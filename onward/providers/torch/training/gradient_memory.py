"""GradientMemory: where functions of a step find the accumulated gradients, and leave new ones."""

from __future__ import annotations

from collections.abc import Sequence

from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.store import TorchStore


class GradientMemory:
    """The vectors of accumulated gradients, one for each update.

    With `is_fixed`, functions write to vectors that stay, as CUDA graphs require. Else they are
    given the vectors to add to, and return those that replace them.
    """

    def __init__(self, store: TorchStore | TorchPartStore, is_fixed: bool) -> None:
        self._store, self._is_fixed = store, is_fixed

    def free(self) -> None:
        """Free the memory of all gradients: others will replace them."""
        if not self._is_fixed:
            for tensors in self._store.updates:
                tensors.gradients = None

    def begin(self, first: bool) -> list[Tensor]:
        """The gradients to add to; none, and their memory freed, at the first micro-batch."""
        if self._is_fixed:
            return []
        if not first:
            return self._store.gradient_buffers()
        self.free()
        return []

    def replace(self, vectors: Sequence[Tensor]) -> None:
        """Keep the gradients that a function returned."""
        if not self._is_fixed:
            for tensors, vector in zip(self._store.updates, vectors):
                tensors.gradients = vector

    def begin_update(self, update: int, first: bool) -> Tensor | None:
        """The gradients of an update to add to; None at the first micro-batch."""
        if first or self._is_fixed:
            return None
        return self._store.updates[update].gradient_vector()

    def replace_update(self, update: int, vector: Tensor) -> None:
        """Keep the gradients of an update that a function returned."""
        if not self._is_fixed:
            self._store.updates[update].gradients = vector

    def clear_update(self, update: int) -> None:
        """Set the gradients of an update to zero."""
        self._store.updates[update].gradient_vector().zero_()
