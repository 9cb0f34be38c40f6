"""What settings must be: each check names the class, the field, the law and what was given.

Numbers of numpy's become Python's, for settings are written as JSON.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from onward.errors import OptionError

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127  # float32's, with all of its digits


def check_number(
    owner: object, name: str, *, low: float = 0.0, high: float = math.inf, below: bool = False
) -> None:
    """A finite number from `low` to `high`, `high` itself left out where `below` says so."""
    number = _number(owner, name, getattr(owner, name), low, high, below)
    object.__setattr__(owner, name, number)


def check_above(owner: object, name: str, low: float) -> None:
    """A finite number greater than `low`."""
    given = getattr(owner, name)
    number = plain_number(given)
    if number is None or not number > low:
        raise _refusal(owner, name, f"a number above {low:g}", given)
    object.__setattr__(owner, name, number)


def check_scale(owner: object, name: str) -> None:
    """A number above 0 that float32 has, with all of its digits."""
    check_above(owner, name, 0.0)
    given = getattr(owner, name)
    if not SMALLEST <= given <= LARGEST:
        law = f"a number from {SMALLEST:g} to {LARGEST:g}, for it is a float32"
        raise _refusal(owner, name, law, given)


def check_betas(owner: object, name: str = "betas") -> None:
    """Two numbers from 0 to below 1; a list becomes a tuple."""
    given = getattr(owner, name)
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise _refusal(owner, name, "two numbers", given)
    betas = (_number(owner, f"{name}[{i}]", b, 0.0, 1.0, True) for i, b in enumerate(given))
    object.__setattr__(owner, name, tuple(betas))


def check_count(owner: object, name: str, *, low: int = 1) -> None:
    """A whole number, at least `low`."""
    given = getattr(owner, name)
    if not isinstance(given, numbers.Integral) or isinstance(given, bool) or int(given) < low:
        raise _refusal(owner, name, f"a whole number, at least {low}", given)
    object.__setattr__(owner, name, int(given))


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


def plain_number(given: object) -> float | None:
    """A finite number of anybody's as one of Python's; None for what is none.

    >>> plain_number(True), plain_number("1"), plain_number(1)
    (None, None, 1)
    """
    if not isinstance(given, numbers.Real) or isinstance(given, bool):
        return None
    try:
        number = float(given)
    except OverflowError:  # a whole number that no float comes near
        return None
    if not math.isfinite(number):
        return None
    return given if isinstance(given, int) else number


def _number(owner: object, name: str, given: object, low: float, high: float, below: bool) -> float:
    law = f"a number, at least {low:g}"
    if high < math.inf:
        law = f"a number from {low:g} to {'below ' if below else ''}{high:g}"
    number = plain_number(given)
    if number is None or number < low or number > high or (below and number == high):
        raise _refusal(owner, name, law, given)
    return number


def _refusal(owner: object, name: str, law: str, given: object) -> OptionError:
    field = name.partition("[")[0]
    return OptionError(
        f"{type(owner).__name__}.{name} is {law}, not {given!r}\ngive {field} such a value"
    )
