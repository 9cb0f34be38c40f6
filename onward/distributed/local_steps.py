"""The protocol of local steps: processes train separately, and average weights every few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from onward.distributed.communicator import Communicator
from onward.programs.program import Array


class WeightAverager(Protocol):
    """Averages the weights of the processes after some of their updates.

    It counts the updates itself. A process may skip one, because its own gradients are not finite;
    it still calls `after_update`, as all others do, so that all average at the same time.
    """

    def after_update(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Average the vectors of parameters in place, if it is time; whether it was.

        After an average, the parameters of all processes are the same bits.
        """
        ...

    def state(self) -> dict[str, Array]:
        """What a checkpoint keeps, such as the weights at the last average; equal everywhere."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned; an empty one changes nothing."""
        ...


class LocalSteps(Protocol):
    """Settings of local steps: a frozen value."""

    def open(
        self, communicator: Communicator, parameters: Sequence[torch.Tensor]
    ) -> WeightAverager:
        """An averager of these vectors of parameters, which are equal on all processes."""
        ...

    def bytes_sent(self, vectors: Sequence[int], size: int) -> int:
        """The bytes that one of `size` processes sends for an average of vectors of these bytes."""
        ...
