"""KeptScale: a dynamic loss scale that steps read and adjust on the device.

    factor = 1 / (micro * scale)                  of the gradients of an update
    scale, good_steps = rule(scale, good_steps, finite)      after it

The rule is DynamicLossScale's own, over tensors. The host reads nothing until it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from onward.optimizers.loss_scaling import Arithmetic, DynamicLossScale
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.function_writer import FunctionWriter
from onward.settings import FLOAT32_SMALLEST


class KeptScale:
    """A dynamic loss scale on a device, in the tensor that the train graph reads."""

    def __init__(self, rule: DynamicLossScale, scale: Tensor) -> None:
        self._rule, self._scale = rule, scale
        with torch.no_grad():
            self._good_steps = torch.zeros((), dtype=torch.int64, device=scale.device)
            self._factor = torch.ones((), dtype=torch.float64, device=scale.device)
            self._micro = torch.ones((), dtype=torch.float64, device=scale.device)
        self._micro_written = 1

    def restore(self, state: Mapping[str, float | int]) -> None:
        """Continue from a state of the rule."""
        self._scale.fill_(float(state["scale"]))
        self._good_steps.fill_(int(state["good_steps"]))

    def state(self) -> dict[str, float | int]:
        """The state of the rule; waits for the device."""
        return {"scale": float(self._scale), "good_steps": int(self._good_steps)}

    def set_micro(self, micro: int) -> None:
        """Set the number of micro-batches of the next update."""
        if micro != self._micro_written:
            self._micro.fill_(micro)
            self._micro_written = micro

    def factor(self) -> float:
        """The factor of the gradients of the last update; waits for the device."""
        return float(self._factor)

    # -- lines of a step -----------------------------------------------------------------------

    def write_factor(self, function: FunctionWriter) -> str:
        """Write the factor of this update's gradients; its name."""
        scale, micro, held = map(function.bind, (self._scale, self._micro, self._factor))
        function.line(f"factor = 1.0 / ({micro} * {scale}.double())")
        function.line(f"{held}.copy_(factor)")
        return "factor"

    def write_next(self, function: FunctionWriter) -> None:
        """Write the change of the scale after an update, by `finite`."""
        scale, good_steps = function.bind(self._scale), function.bind(self._good_steps)
        rule = function.bind_function(self._next_state)
        function.line(f"next_scale, next_good = {rule}({scale}.double(), {good_steps}, finite)")
        function.line(f"{scale}.copy_(next_scale)")
        function.line(f"{good_steps}.copy_(next_good)")

    def _next_state(self, scale: Tensor, good_steps: Tensor, finite: Tensor) -> tuple[Tensor, ...]:
        return self._rule.next_state(scale, good_steps, finite, _TENSORS, FLOAT32_SMALLEST)


def _to_float32(number: Tensor) -> Tensor:
    return number.float().double()


_TENSORS = Arithmetic(torch.where, _to_float32)
