"""Uncompressed: gradients are sent as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from onward.distributed.communicator import Communicator, Work
from onward.programs.program import Array


class SumReducer:
    """Sums a bucket by one all-reduce."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def reduce(self, vector: torch.Tensor, scale: float = 1.0) -> Work:
        return self._communicator.all_reduce(vector)

    def undo(self) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        pass
