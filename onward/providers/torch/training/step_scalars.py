"""StepScalars: the numbers of a training step as tensors on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.program import DRAW, SCALE, Layout
from onward.providers.provider import Draw
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.kept_scale import KeptScale


class StepScalars:
    """The scalars of a step (counts, rates, factors) as tensors on the device."""

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        lookahead: int,
        update_device: torch.device | None = None,  # where updates run; None: on the device
    ) -> None:
        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=update_device or device)

        # whether the gradients that await an update are finite
        self.flag = zeros(torch.bool).fill_(True)
        self.squares = zeros(torch.float64)  # the sum of their squares
        self.count = zeros(torch.int64)  # updates so far
        self.first = zeros(torch.int64)  # the count to which the first of the rates belongs
        self.rates = zeros(torch.float64, len(layout.updates), lookahead)
        self.factors = [  # of the gradients
            zeros(getattr(torch, update.dtype)).fill_(1.0) for update in layout.updates
        ]
        self.inputs = {  # of the train graph
            SCALE: zeros(getattr(torch, layout.settings.loss_dtype)).fill_(1.0).to(device),
            DRAW: zeros(torch.int64, 3).to(device),
        }
        self.kept_scale: KeptScale | None = None  # a dynamic loss scale; None: the host has it
        self._draw = self.inputs[DRAW].unbind()
        self._drawn: Draw | None = None  # what they hold
        self._written: dict[int, float] = {}

    def write(self, tensor: Tensor, number: float) -> None:
        """Fill a tensor on the device, unless it holds the number already."""
        if self._written.get(id(tensor)) != number:
            tensor.fill_(number)
            self._written[id(tensor)] = number

    def keep_scale(self, rule: DynamicLossScale, state: Mapping[str, float | int]) -> None:
        """Keep a dynamic loss scale on the device, from this state."""
        if self.kept_scale is None:
            self.kept_scale = KeptScale(rule, self.inputs[SCALE])
        self.kept_scale.restore(state)

    def write_scale(self, scale: float) -> None:
        """Write the loss scale of the next batch, unless it is kept here."""
        if self.kept_scale is None:
            self.write(self.inputs[SCALE], scale)

    def write_draw(self, draw: Draw) -> None:
        """Write the seed, step and micro-batch that the train graph's random numbers depend on."""
        if draw == self._drawn:
            return
        for i, number in enumerate(draw):
            if self._drawn is None or number != self._drawn[i]:
                self._draw[i].fill_((number + (1 << 63)) % (1 << 64) - (1 << 63))
        self._drawn = draw

    def draw_advanced(self) -> None:
        """A whole step has advanced the step that random numbers depend on."""
        assert self._drawn is not None
        seed, step, micro = self._drawn
        self._drawn = Draw(seed, step + 1, micro)
