"""The settings of a pruning, read from what a user writes: keep, "1G", "5min"."""

from __future__ import annotations

from dataclasses import dataclass

from onward.compress.pruning.importance import KINDS
from onward.compress.pruning.sparse_masks import read_pattern
from onward.errors import OptionError
from onward.quantities import parse_count, parse_duration

_DEFAULT_KEEP = 0.5


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is asked for: one of these, or some layers."""

    keep: float | None = None
    speedup: float | None = None
    macs: int | None = None
    layers: int = 0
    pattern: str | None = None
    sparsity: float | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether only zeros are asked for."""
        return self.pattern is not None or self.sparsity is not None

    @property
    def cuts_units(self) -> bool:
        """Whether units are removed."""
        return self.keep is not None or self.speedup is not None or self.macs is not None


def make_goal(
    keep: float | None,
    speedup: float | None,
    macs: int | str | None,
    layers: int,
    pattern: str | None,
    sparsity: float | None,
) -> Goal:
    """Check what a user asks for; nothing means half of the units."""
    asked = {"keep": keep, "speedup": speedup, "macs": macs}
    asked |= {"pattern": pattern, "sparsity": sparsity}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise OptionError(f"{given[0]} and {given[1]} cannot both be given\ngive one of them")
    if not given and not layers:
        keep = _DEFAULT_KEEP
    if keep is not None and not 0 < keep <= 1:
        raise OptionError(f"keep must be more than 0 and at most 1, not {keep:g}")
    if speedup is not None and not 1 < speedup < float("inf"):
        raise OptionError(f"speedup must be more than 1, such as 1.5, not {speedup:g}")
    if sparsity is not None and not 0 < sparsity < 1:
        raise OptionError(f"sparsity must be between 0 and 1, such as 0.9, not {sparsity:g}")
    if pattern is not None:
        read_pattern(pattern)
    if layers < 0:
        raise OptionError(f"layers must be at least 0, not {layers}")
    return Goal(
        keep=keep,
        speedup=speedup,
        macs=None if macs is None else read_count(macs),
        layers=layers,
        pattern=pattern,
        sparsity=sparsity,
    )


def read_count(number: int | str) -> int:
    """A number of multiplications.

    >>> read_count("1.5G"), read_count(1000)
    (1500000000, 1000)
    """
    found = parse_count(str(number))
    if not found:
        raise OptionError(f"macs is a number such as 1G or 250M, not {str(number)!r}")
    return int(found)


def read_time(given: float | str | None) -> float | None:
    """A time in seconds.

    >>> read_time("5min"), read_time(90), read_time("1h")
    (300.0, 90.0, 3600.0)
    """
    if given is None:
        return None
    found = parse_duration(str(given))
    if found is None:
        raise OptionError(f"tune is a time such as 5min or 90s, not {str(given)!r}")
    return found


def check_importance(importance: str) -> str:
    """Check the name of a kind of importance."""
    if importance not in KINDS:
        raise OptionError(f"there is no importance {importance!r}\nit is one of {', '.join(KINDS)}")
    return importance
