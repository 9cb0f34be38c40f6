"""What settings must be: each check names the class, the field, the law and what was given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onward.errors import OptionError


def check_number(
    owner: object, name: str, *, low: float = 0.0, high: float = math.inf, below: bool = False
) -> None:
    """A finite number from `low` to `high`, `high` itself left out where `below` says so."""
    _number(owner, name, getattr(owner, name), low, high, below)


def check_above(owner: object, name: str, low: float) -> None:
    """A finite number greater than `low`."""
    given = getattr(owner, name)
    if not (_is_number(given) and given > low):
        raise _refusal(owner, name, f"a number above {low:g}", given)


def check_betas(owner: object, name: str = "betas") -> None:
    """Two numbers from 0 to below 1; a list becomes a tuple."""
    given = getattr(owner, name)
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise _refusal(owner, name, "two numbers", given)
    for index, beta in enumerate(given):
        _number(owner, f"{name}[{index}]", beta, 0.0, 1.0, below=True)
    object.__setattr__(owner, name, tuple(given))


def check_count(owner: object, name: str, *, low: int = 1) -> None:
    """A whole number, at least `low`."""
    given = getattr(owner, name)
    if not isinstance(given, int) or isinstance(given, bool) or given < low:
        raise _refusal(owner, name, f"a whole number, at least {low}", given)


def check_flag(owner: object, name: str) -> None:
    """True or False."""
    given = getattr(owner, name)
    if not isinstance(given, bool):
        raise _refusal(owner, name, "True or False", given)


def check_choice(owner: object, name: str, choices: Sequence[str]) -> None:
    """One of a few words."""
    given = getattr(owner, name)
    if given not in choices:
        raise _refusal(owner, name, " or ".join(map(repr, choices)), given)


def _number(owner: object, name: str, given: object, low: float, high: float, below: bool) -> None:
    law = f"a number, at least {low:g}"
    if high < math.inf:
        law = f"a number from {low:g} to {'below ' if below else ''}{high:g}"
    if not _is_number(given):
        raise _refusal(owner, name, law, given)
    assert isinstance(given, (int, float))
    if given < low or given > high or (below and given == high):
        raise _refusal(owner, name, law, given)


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)


def _refusal(owner: object, name: str, law: str, given: object) -> OptionError:
    field = name.partition("[")[0]
    return OptionError(
        f"{type(owner).__name__}.{name} is {law}, not {given!r}\ngive {field} such a value"
    )
