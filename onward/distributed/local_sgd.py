"""LocalSGD: every process updates its own weights, and every few steps they are averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from onward.distributed.communicator import Communicator
from onward.distributed.ring_bytes import ring_bytes
from onward.programs.program import Array
from onward.settings import check_fields, explain_frozen, explain_keywords, integer


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Average the weights of the processes every few steps, instead of gradients at each step.

    The optimizer's state stays local. With SGD and `every=1`, it equals averaged gradients.

    Attributes:
        every: updates from one average to the next
        warmup_steps: updates at the beginning that are each followed by an average
    """

    every: int = 8
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_fields(self, every=integer(1), warmup_steps=integer(0))

    def open(
        self, communicator: Communicator, parameters: Sequence[torch.Tensor]
    ) -> LocalSGDAverager:
        return LocalSGDAverager(self, communicator)

    def bytes_sent(self, vectors: Sequence[int], size: int) -> int:
        return sum(ring_bytes("all_reduce", each, size) for each in vectors)


class LocalSGDAverager:
    """Averages weights; it keeps the number of updates only."""

    def __init__(self, settings: LocalSGD, communicator: Communicator) -> None:
        self._settings, self._communicator = settings, communicator
        self._updates = 0

    def after_update(self, parameters: Sequence[torch.Tensor]) -> bool:
        self._updates += 1
        local = self._updates - self._settings.warmup_steps
        if local > 0 and local % self._settings.every:
            return False
        average_vectors(self._communicator, parameters)
        return True

    def state(self) -> dict[str, Array]:
        return {"updates": np.array(self._updates)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self._updates = int(state.get("updates", self._updates))


def average_vectors(communicator: Communicator, vectors: Sequence[torch.Tensor]) -> None:
    """Replace vectors by their mean over the processes."""
    works = [communicator.all_reduce(each) for each in vectors]
    for work, each in zip(works, vectors):
        work.wait()
        each.div_(communicator.size)
