"""Tune: how long and how the rounding of a quantized model is learned."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from onward.errors import OptionError
from onward.losses.loss import Loss
from onward.quantities import parse_duration
from onward.settings import above, check_fields, explain_frozen, explain_keywords, integer, optional

_STEPS = re.compile(r"(\d+) *steps?")


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Tune:
    """Settings of learned rounding.

    Attributes:
        steps, seconds: when to end, whichever is first; both None: after 300 steps
        data: batches to learn from, as `Calibration` takes them; None: the calibration's. Every
            eighth batch, 256 rows at most, is held out for validation
        target: the column of `data` with the targets of `loss`
        learning_rate: of the integers: 0.01 is a hundredth of the distance between two neighbouring
            integers
        scale_rate: learning rate of the scales, in integers that the largest one moves: relative to
            the scale, it is smaller for 8 bits than for 2
        loss: a loss of labelled data (quantization-aware training); None: the float model's outputs
            are learned, without labels
        batch: rows of a batch, joined from smaller batches of the same shape; None: 32
        layers: whether each layer is fitted to its own float output first
        seed: of the order of batches
        folder: where Ctrl-C saves the state; the same call continues. None: nowhere

    >>> Tune(steps=200).learning_rate
    0.01
    """

    steps: int | None = None
    seconds: float | None = None
    data: Any = None
    target: str | None = None
    learning_rate: float = 0.01
    scale_rate: float = 0.02
    loss: Loss | None = None
    batch: int | None = None
    layers: bool = True
    seed: int = 0
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            steps=optional(integer(1)),
            seconds=optional(above(0.0)),
            learning_rate=above(0.0),
            scale_rate=above(0.0),
            batch=optional(integer(1)),
            seed=integer(0),
        )

    @classmethod
    def read(cls, text: str) -> Tune:
        """Settings from a text, as on the command line: a time, or a number of steps.

        >>> Tune.read("5min").seconds, Tune.read("200 steps").steps
        (300.0, 200)
        """
        steps = _STEPS.fullmatch(text.strip().lower())
        if steps is not None and int(steps[1]):
            return cls(steps=int(steps[1]))
        seconds = parse_duration(text)
        if seconds is None or not text.strip()[-1].isalpha():  # 5: seconds, or steps?
            raise OptionError(
                f"{text!r} is neither a duration nor a number of steps\n"
                "give one such as 90s, 5min, 1h, or 200steps"
            )
        return cls(seconds=seconds)
