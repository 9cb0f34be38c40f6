"""The protocols of gradient compression: settings, and the reducers that they open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from onward.distributed.communicator import Communicator, Work
from onward.programs.program import Array
from onward.programs.vector_offsets import Places


class Reducer(Protocol):
    """Sums one bucket of gradients over the processes, and keeps what it did not send.

    Every process ends with the same bits. Several reducers may be in flight, one reduction of
    each; all processes start them in the same order and wait for them in the same order.
    """

    def reduce(self, vector: torch.Tensor, scale: float = 1.0) -> Work:
        """Start to replace a vector by its sum over the processes, or by an estimate of it.

        The vector is gradients times `scale` (loss scale, micro-batches): what was not sent at
        one scale is added at another one. If a process has numbers that are not finite, all
        processes end with such numbers, and nothing is kept of the step.
        """
        ...

    def undo(self) -> None:
        """Keep what was kept before the last `reduce`, because its update was skipped."""
        ...

    def state(self) -> dict[str, Array]:
        """What a checkpoint of this process keeps, such as the error that was not sent yet."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned; an empty one is that of a new reducer."""
        ...


class Compression(Protocol):
    """Settings of a compression: a frozen value."""

    def open(self, communicator: Communicator, places: Places) -> Reducer:
        """A reducer of one bucket: a vector with tensors at these places, and zeros elsewhere."""
        ...

    def bytes_sent(self, places: Places, size: int) -> int:
        """The bytes that one of `size` processes sends in a `reduce`, as Communicator counts."""
        ...
