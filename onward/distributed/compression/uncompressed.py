"""Uncompressed: gradients are sent as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onward.distributed.communicator import Communicator, Work


class SumReducer:
    """Sums a bucket by one all-reduce."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def reduce(self, vector: torch.Tensor) -> Work:
        return self._communicator.all_reduce(vector)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
