"""The protocol of local steps: processes train alone, and average their weights now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from onward.distributed.communicator import Communicator


class WeightAverager(Protocol):
    """Averages the weights of the processes after some of their updates."""

    def after_update(self, step: int, parameters: Sequence[torch.Tensor]) -> bool:
        """Average the vectors of parameters in place, if it is time; whether it was."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, such as the weights at the last average."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class LocalSteps(Protocol):
    """Settings of local steps: a frozen value."""

    def open(
        self, communicator: Communicator, parameters: Sequence[torch.Tensor]
    ) -> WeightAverager:
        """An averager of these vectors of parameters."""
        ...
