"""Dynamic loss scaling for 16-bit gradients: grow while gradients are finite, else back off."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from onward.errors import OptionError
from onward.optimizers.json_records import record
from onward.settings import above, check_fields, float32_above_0, integer, number

State = dict[str, float | int]


@dataclass(frozen=True, kw_only=True)
class DynamicLossScale:
    """torch.amp.GradScaler's rule: `growth` after `interval` good steps, `backoff` after a bad one.

    The state is a dict, which checkpoints contain; `update` returns the next one.

    Attributes:
        initial: the scale of the first step
        growth: the factor after good steps
        backoff: the factor after a step with infinite or NaN gradients
        interval: how many good steps in a row before the scale grows

    >>> scaling = DynamicLossScale(interval=1)
    >>> scaling.update(scaling.start(), finite=True)
    {'scale': 131072.0, 'good_steps': 0}
    >>> scaling.update(scaling.start(), finite=False)
    {'scale': 32768.0, 'good_steps': 0}
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        check_fields(self, initial=float32_above_0, growth=above(1.0), backoff=above(0.0))
        check_fields(self, backoff=number(high=1.0, below=True), interval=integer(1))

    def start(self) -> State:
        """The state before the first step."""
        return {"scale": _float32(self.initial), "good_steps": 0}

    def update(self, state: State, *, finite: bool) -> State:
        """The state after a step; if its gradients were not all finite, it was skipped."""
        scale, good = _scale_and_good_steps(state)
        if not finite:
            return {"scale": _float32(scale * self.backoff), "good_steps": 0}
        if good + 1 < self.interval:
            return {"scale": scale, "good_steps": good + 1}
        grown = _float32(scale * self.growth)
        return {"scale": grown if math.isfinite(grown) else scale, "good_steps": 0}

    def to_dict(self) -> dict[str, Any]:
        return record(self)


def _scale_and_good_steps(state: State) -> tuple[float, int]:
    try:
        return float(state["scale"]), int(state["good_steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"the state of a loss scale must have 'scale' and 'good_steps', not {state!r}\n"
            "start from DynamicLossScale.start()"
        ) from error


def _float32(number: float) -> float:
    """The nearest float32, or infinity."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.inf
