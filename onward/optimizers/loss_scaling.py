"""Dynamic loss scaling for 16-bit gradients: grow while gradients are finite, else back off."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from onward.errors import OptionError
from onward.optimizers.json_records import record
from onward.settings import above, check_fields, float32_above_0, integer, number

State = dict[str, float | int]

_LARGEST = 2.0**126  # the inverse of a larger scale is denormal, which is 0 on x86 while training


class Arithmetic(NamedTuple):
    """What the rule of a loss scale needs, for Python's numbers or for tensors of an engine."""

    where: Callable[[Any, Any, Any], Any]  # (condition, if true, if false)
    to_float32: Callable[[Any], Any]  # a float64 rounded to float32; infinite if it is too large


@dataclass(frozen=True, kw_only=True)
class DynamicLossScale:
    """torch.amp.GradScaler's rule: `growth` after `interval` good steps, `backoff` after a bad one.

    The state is a dict, which checkpoints contain; `update` returns the next one.

    Attributes:
        initial: the scale of the first step
        growth: the factor after good steps, up to 2**126
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

    def update(self, state: State, *, finite: bool, least: float = 0.0) -> State:
        """The state after a step; if its gradients were not all finite, it was skipped.

        least: a limit below which the scale does not fall
        """
        scale, good = _scale_and_good_steps(state)
        scale, good = self.next_state(scale, good, finite, _NUMBERS, least)
        return {"scale": scale, "good_steps": good}

    def next_state(
        self, scale: Any, good_steps: Any, finite: Any, by: Arithmetic, least: float = 0.0
    ) -> tuple[Any, Any]:
        """The rule, without a branch: the next scale and number of good steps.

        They are Python's numbers, or tensors of an engine, the scale in float64.
        """
        good = good_steps + 1
        is_due = good >= self.interval
        grown = by.to_float32(scale * self.growth)
        grown = by.where(grown <= _LARGEST, grown, scale)
        kept = by.where(is_due, grown, scale)
        scale = by.where(finite, kept, by.to_float32(scale * self.backoff))
        good = by.where(finite, by.where(is_due, 0, good), 0)
        return by.where(scale < least, least, scale), good

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


_NUMBERS = Arithmetic(lambda condition, a, b: a if condition else b, _float32)
