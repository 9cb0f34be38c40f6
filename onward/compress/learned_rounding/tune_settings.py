"""Tune: how long and how the rounding of a quantized model is learned."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from onward.errors import OptionError
from onward.losses.loss import Loss
from onward.settings import above, check_fields, explain_frozen, explain_keywords, integer, optional

_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(s|sec|m|min|h|steps?)")


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Tune:
    """Settings of learned rounding.

    Attributes:
        steps, seconds: when to end, whichever is first; both None: after 300 steps
        data: batches to learn from, as `Calibration` takes them; None: the calibration's. Every
            eighth batch, 256 rows at most, is left out to judge with
        target: the column of `data` with the targets of `loss`
        learning_rate: of the integers, in steps of the grid: 0.005 is a two hundredth of the
            distance of two integers
        scale_rate: of the scales: by how many steps of the grid the largest integer moves; so it is
            a small share of the scale of 8 bits, and a larger one of 2 bits
        loss: a loss of labelled data (quantization-aware training); None: the float model's outputs
            are learned, without labels
        batch: rows of a batch, joined from smaller batches of the same shape; None: 32
        layers: whether each layer is fitted to its own float output first
        seed: of the order of batches
        folder: where Ctrl-C saves the state; the same call continues. None: nowhere

    >>> Tune(steps=200).learning_rate
    0.005
    """

    steps: int | None = None
    seconds: float | None = None
    data: Any = None
    target: str | None = None
    learning_rate: float = 0.005
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
        match = _TEXT.fullmatch(text.strip().lower())
        if match is None or not float(match[1]):
            raise OptionError(
                f"{text!r} is not a time to tune\ngive one such as 90s, 5min, 1h, or 200steps"
            )
        if match[2].startswith("step"):
            return cls(steps=max(1, round(float(match[1]))))
        return cls(seconds=float(match[1]) * _UNITS[match[2]])
