"""DiLoCo: processes train separately; their progress is the gradient of an outer SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from onward.distributed.communicator import Communicator
from onward.distributed.compression.reducer_memory import is_finite
from onward.distributed.local_sgd import average_vectors
from onward.distributed.ring_bytes import ring_bytes
from onward.errors import CheckpointMismatch, OptionError
from onward.programs.program import Array
from onward.settings import (
    above,
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    number,
    true_or_false,
)

Tensor = torch.Tensor


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class DiLoCo:
    """d = mean(w0 - w),  m' = momentum m + d,  w0' = w0 - lr (d + momentum m'),  w = w0'

    w0 are the weights after the last round, w those of each process now. Without nesterov,
    w0' = w0 - lr m'. The inner optimizer, AdamW as a rule, keeps its state on each process.

    Attributes:
        every: updates of a round
        outer_lr: how far the average of a round is followed
        outer_momentum: how much of the last rounds' direction is kept
        nesterov: look ahead along the direction
    """

    every: int = 100
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            every=integer(1),
            outer_lr=above(0.0),
            outer_momentum=number(high=1.0, below=True),
            nesterov=true_or_false,
        )
        if self.nesterov and not self.outer_momentum:
            raise OptionError(
                "DiLoCo.nesterov needs outer_momentum above 0\n"
                "set outer_momentum, such as 0.9, or nesterov=False"
            )

    def open(self, communicator: Communicator, parameters: Sequence[Tensor]) -> DiLoCoAverager:
        return DiLoCoAverager(self, communicator, parameters)

    def bytes_sent(self, vectors: Sequence[int], size: int) -> int:
        return sum(ring_bytes("all_reduce", each, size) for each in vectors)


class DiLoCoAverager:
    """The weights after the last round, and the outer momentum."""

    def __init__(
        self, settings: DiLoCo, communicator: Communicator, parameters: Sequence[Tensor]
    ) -> None:
        self._settings, self._communicator = settings, communicator
        self._updates = 0
        self._start = [each.clone() for each in parameters]
        momentum = parameters if settings.outer_momentum else ()
        self._momentum = [torch.zeros_like(each) for each in momentum]

    def after_update(self, parameters: Sequence[Tensor]) -> bool:
        self._updates += 1
        if self._updates % self._settings.every:
            return False
        differences = [start - each for start, each in zip(self._start, parameters)]
        average_vectors(self._communicator, differences)
        if is_finite(*differences):  # if not, all processes return to the start of the round
            self._step(differences)
        for each, start in zip(parameters, self._start):
            each.copy_(start)
        return True

    def _step(self, gradients: Sequence[Tensor]) -> None:
        """One update of the outer optimizer."""
        lr, momentum = self._settings.outer_lr, self._settings.outer_momentum
        if not momentum:
            for start, d in zip(self._start, gradients):
                start.sub_(d, alpha=lr)
            return
        for start, d, m in zip(self._start, gradients, self._momentum):
            m.mul_(momentum).add_(d)
            start.sub_(d.add(m, alpha=momentum) if self._settings.nesterov else m, alpha=lr)

    def state(self) -> dict[str, Array]:
        tensors = self._tensors()
        return {"updates": np.array(self._updates)} | {
            name: each.cpu().numpy().copy() for name, each in tensors.items()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        if not state:
            return
        own = self._tensors()
        for name, each in own.items():
            found = state.get(name)
            if found is None or found.shape != tuple(each.shape):
                given = "is missing" if found is None else f"has {found.size} elements"
                raise CheckpointMismatch(
                    f"the checkpoint does not fit: DiLoCo's {name} {given}, this run needs "
                    f"{each.numel()}\n"
                    "continue with the settings of DiLoCo and of the model that were saved"
                )
        for name, each in own.items():
            each.copy_(torch.from_numpy(np.array(state[name])))
        self._updates = int(state["updates"])

    def _tensors(self) -> dict[str, Tensor]:
        start = {f"start.{i}": each for i, each in enumerate(self._start)}
        return start | {f"momentum.{i}": each for i, each in enumerate(self._momentum)}
