"""The protocols of gradient compression: settings, and the reducers that they open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from onward.distributed.communicator import Communicator, Work


class Reducer(Protocol):
    """Sums one bucket of gradients over the processes, and keeps what it did not send."""

    def reduce(self, vector: torch.Tensor) -> Work:
        """Start to replace a vector by its sum over the processes, or by an estimate of it."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint of this process keeps, such as the error that was not sent yet."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class Compression(Protocol):
    """Settings of a compression: a frozen value."""

    def open(self, communicator: Communicator, shapes: Mapping[str, tuple[int, ...]]) -> Reducer:
        """A reducer of one bucket: a vector of tensors of these shapes, one after the other."""
        ...
