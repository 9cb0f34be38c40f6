"""Memory: how much memory the activations of a training step may take, and by which means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.quantities import parse_bytes
from onward.settings import (
    check_fields,
    choice,
    explain_frozen,
    explain_keywords,
    integer,
    list_of,
    mapping,
    optional,
    setting_error,
    true_or_false,
)

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)
_UNIT = re.compile(r"b\s*$", re.IGNORECASE)
EVERYTHING = 2  # the level at which every node may be computed again


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Memory:
    """How the activations of a training step are kept for its backward pass.

    Attributes:
        level: what may be computed again: 0 what `plan` names, 1 what is cheap, inside each layer,
            2 matrix products and convolutions, too; None: 2 with a budget, else 0
        plan: names or patterns of values that are computed again
        budget: the bytes that activations may take at once: a number, "8GiB", or "50%" of what
            they take without it; None: as few as the level allows
        offload: move what waits for the backward pass to host memory, while the device computes
        stash: "int8": keep what waits for the backward pass in 8 bits, with a scale for each block
        sizes: of dynamic dimensions, {"batch": 32}; others are taken to be 64

    >>> Memory(budget="50%").budget_bytes(2000)
    1000
    """

    level: int | None = None
    plan: Sequence[str] = ()
    budget: int | str | None = None
    offload: bool = False
    stash: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(
            self,
            level=optional(integer(0, EVERYTHING)),
            plan=list_of(str, "a list of names", "['*gelu*']"),
            budget=optional(_budget),
            offload=true_or_false,
            stash=optional(choice("int8")),
            sizes=mapping(integer(1), "{'batch': 32}"),
        )

    @property
    def highest_level(self) -> int:
        """The level, with its default."""
        if self.level is None:
            return 0 if self.budget is None else EVERYTHING
        return self.level

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of what activations take without it."""
        return isinstance(self.budget, str) and "%" in self.budget

    def budget_bytes(self, unlimited: int) -> int | None:
        """The budget in bytes, if activations take `unlimited` bytes without it."""
        if self.budget is None or isinstance(self.budget, int):
            return self.budget
        share = _PERCENT.fullmatch(self.budget)
        return int(unlimited * float(share[1]) / 100 if share else parse_bytes(self.budget) or 0)


def _budget(name: str, value: Any) -> int | str:
    """A number of bytes, or text with a unit or a percent sign."""
    law = "a number of bytes above 0, or text such as '8GiB' or '50%'"
    if not isinstance(value, str):
        try:
            number: int = integer(1)(name, value)
        except ValueError:
            raise setting_error(name, law, value) from None
        return number
    share = _PERCENT.fullmatch(value)
    if share is None:
        is_valid = bool(parse_bytes(value)) and _UNIT.search(value) is not None
    else:
        is_valid = 0 < float(share[1]) <= 100
    if not is_valid:
        raise setting_error(name, law, value)
    return value
