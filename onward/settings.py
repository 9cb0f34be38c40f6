"""Checks of settings: of options, limits, optimizers, schedules and losses.

A check takes the setting's full name ("AdamW.lr") and the value that was given. It returns the
value to keep, or raises an OptionError with the name, what the setting must be, and what was given.
Numbers of numpy become Python numbers, because settings are written as JSON.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from onward.errors import OptionAttributeError, OptionError, OptionTypeError
from onward.message_text import suggest_names

Check = Callable[[str, Any], Any]
T = TypeVar("T")

_INT32 = (1 << 31) - 1  # the largest number that onnxruntime keeps
FLOAT32_SMALLEST = 2.0**-126  # with all of its digits
FLOAT32_LARGEST = (2.0 - 2.0**-23) * 2.0**127


class CheckedSettings:
    """Settings that may be changed: only known names, and each value is checked when it is set."""

    _checks: ClassVar[Mapping[str, Check]]
    _absent: ClassVar[Mapping[str, str]] = {}  # onnxruntime's names: what to do instead

    if not TYPE_CHECKING:  # a type checker would allow any name

        def __setattr__(self, name: str, value: Any) -> None:
            check = self._checks.get(name)
            if check is None:
                raise self._unknown(name)
            object.__setattr__(self, name, check(f"{type(self).__name__}.{name}", value))

        def __getattr__(self, name: str) -> NoReturn:
            raise self._unknown(name)

    def _unknown(self, name: str) -> OptionAttributeError:
        owner = type(self).__name__
        if name in self._absent:
            return OptionAttributeError(f"onward.{owner} has no {name!r}\n{self._absent[name]}")
        names = [known for known in (*self._checks, *dir(type(self))) if not known.startswith("_")]
        return OptionAttributeError(
            f"{owner} has no attribute {name!r}\n{suggest_names(name, names)}"
        )


def explain_keywords(cls: type[T]) -> type[T]:
    """Decorate a class so that an unknown keyword raises an error with similar names."""
    create = cls.__init__
    known = [name for name in inspect.signature(create).parameters if name != "self"]

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in known:
                hint = suggest_names(name, known)
                raise OptionTypeError(f"{cls.__name__} has no setting {name!r}\n{hint}")
        create(self, *args, **keywords)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def explain_frozen(cls: type[T]) -> type[T]:
    """Decorate a frozen dataclass so that setting a field raises an OptionError with the fix."""

    def __setattr__(self: Any, name: str, value: Any) -> NoReturn:
        known = [field.name for field in fields(self)]
        if name not in known:
            hint = suggest_names(name, known)
            raise OptionAttributeError(f"{cls.__name__} has no attribute {name!r}\n{hint}")
        raise OptionAttributeError(
            f"{cls.__name__}.{name} cannot be set: a {cls.__name__} stays as it was made\n"
            f"make another one: dataclasses.replace(it, {name}={value!r})"
        )

    cls.__setattr__ = __setattr__  # type: ignore[method-assign]
    return cls


def is_named(value: object, name: str) -> bool:
    """Whether an object's class, or a base class of it, has this name, in any module."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


def check_fields(owner: object, **checks: Check) -> None:
    """Check fields of a frozen dataclass, and store the values that the checks return."""
    for name, check in checks.items():
        value = check(f"{type(owner).__name__}.{name}", getattr(owner, name))
        object.__setattr__(owner, name, value)


def setting_error(name: str, law: str, value: Any, hint: str = "") -> OptionError:
    """The error for a setting that is not what it must be; `law` says what it must be."""
    demand = f"{name} must be {law}, not {value!r}"
    return OptionError(f"{demand}\n{hint}" if hint else demand)


# -- strict checks -----------------------------------------------------------------------------


def number(
    low: float = 0.0, high: float = math.inf, *, below: bool = False, infinite: bool = False
) -> Check:
    """A number from `low` to `high`; `high` itself is excluded if `below`."""
    law = f"a number, at least {low:g}" if low > -math.inf else "a number"
    if high < math.inf:
        law = f"a number from {low:g} to {'below ' if below else ''}{high:g}"

    def check(name: str, value: Any) -> float:
        given = value if infinite and value == math.inf else finite_number(value)
        if given is None or given < low or given > high or (below and given == high):
            raise setting_error(name, law, value)
        return given

    return check


def above(low: float, *, infinite: bool = False) -> Check:
    """A number greater than `low`."""

    def check(name: str, value: Any) -> float:
        given = value if infinite and value == math.inf else finite_number(value)
        if given is None or not given > low:
            raise setting_error(name, f"a number above {low:g}", value)
        return given

    return check


def float32_above_0(name: str, value: Any) -> float:
    """A number above 0 that float32 can represent with all of its digits."""
    given: float = above(0.0)(name, value)
    if not FLOAT32_SMALLEST <= given <= FLOAT32_LARGEST:
        law = f"a number from {FLOAT32_SMALLEST:g} to {FLOAT32_LARGEST:g}, for it is a float32"
        raise setting_error(name, law, value)
    return given


def integer(low: int | None = None, high: int | None = None) -> Check:
    """A whole number from `low` to `high`; True and False are not."""
    law = "a whole number" if low is None else f"a whole number, at least {low}"
    if high is not None:
        law = f"a whole number from {low} to {high}"

    def check(name: str, value: Any) -> int:
        known = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        least, most = -math.inf if low is None else low, math.inf if high is None else high
        if not known or not least <= int(value) <= most:
            raise setting_error(name, law, value)
        return int(value)

    return check


def several(check_each: Check, law: str, length: int | None = None) -> Check:
    """A list of values that pass a check, `length` of them; it becomes a tuple."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or (length is not None and len(value) != length):
            raise setting_error(name, law, value)
        return tuple(check_each(f"{name}[{i}]", each) for i, each in enumerate(value))

    return check


BETAS = several(number(high=1.0, below=True), "two numbers", 2)


def a_function(name: str, value: Any) -> Any:
    """A function."""
    if not callable(value):
        raise setting_error(name, "a function", value)
    return value


def true_or_false(name: str, value: Any) -> bool:
    """True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # Python's or numpy's
        raise setting_error(name, "True or False", value)
    return bool(value)


def choice(*choices: str) -> Check:
    """One of a few strings."""
    listed = [repr(each) for each in choices]
    law = " or ".join(listed) if len(listed) < 3 else f"one of {', '.join(listed)}"

    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise setting_error(name, law, value)
        return str(value)

    return check


def nonempty_name(name: str, value: Any) -> str:
    """The name of a value, a node or a parameter."""
    if not isinstance(value, str) or not value:
        raise setting_error(name, "a name", value)
    return value


def optional(check: Check) -> Check:
    """None, or a value that passes a check."""
    return lambda name, value: None if value is None else check(name, value)


def list_of(kind: type, law: str, example: str) -> Check:
    """An iterable of objects of a class; it becomes a tuple."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, kind)):
            raise OptionError(f"{name} must be {law}, not one\nwrite [{value!r}]")
        listed = tuple(value) if isinstance(value, Iterable) else (None,)
        if not all(isinstance(each, kind) for each in listed):
            raise setting_error(name, law, value, f"such as {example}")
        return listed

    return check


def finite_number(value: object) -> float | None:
    """A finite number of any type as a Python number; None for anything else.

    >>> finite_number(True), finite_number("1"), finite_number(1)
    (None, None, 1)
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        given = float(value)
    except OverflowError:  # an integer beyond every float
        return None
    if not math.isfinite(given):
        return None
    return value if isinstance(value, int) else given


# -- checks that accept what onnxruntime accepts -----------------------------------------------


def anything(name: str, value: Any) -> Any:
    """Any value, as it is."""
    return value


def flag(name: str, value: Any) -> bool:
    """True or False, or a number or None, as onnxruntime accepts them."""
    if value is None or isinstance(value, numbers.Real) or type(value).__name__ == "bool":
        return bool(value)
    raise setting_error(name, "True or False", value)


def text(name: str, value: Any) -> str:
    """A string, or bytes in UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise setting_error(name, "a string", value)


def path_text(name: str, value: Any) -> str:
    """A path, as a string; an empty string means none."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise setting_error(name, "a path", value, "give a path, or '' for none")
    return os.fsdecode(value)


def whole_number(low: int = 0, high: int = _INT32, hint: str = "") -> Check:
    """A whole number from `low` to `high`."""
    law = f"a whole number from {low} to {high}" if high != _INT32 else (
        f"a whole number, at least {low}"
    )  # fmt: skip

    def check(name: str, value: Any) -> int:
        number = _whole(value)
        if number is None or not low <= number <= high:
            raise setting_error(name, law, value, hint)
        return number

    return check


def byte_count(name: str, value: Any) -> int | None:
    """A number of bytes above 0, or None."""
    number = None if value is None else _whole(value)
    if value is not None and (number is None or number <= 0):
        raise setting_error(name, "a number of bytes above 0", value, "give None for no limit")
    return number


def seconds(name: str, value: Any) -> float | None:
    """A number of seconds above 0, or None."""
    if value is None:
        return None
    known = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not known or not 0 < value < math.inf:
        law = "a number of seconds above 0, or None"
        raise setting_error(name, law, value, "give None for no limit")
    return value  # type: ignore[no-any-return]


def one_of(kind: type[IntEnum]) -> Check:
    """A member of an enumeration: onward's, onnxruntime's of the same name, or its number."""
    choices = ", ".join(f"{member.name} ({member.value})" for member in kind)

    def check(name: str, value: Any) -> IntEnum:
        plain = isinstance(value, numbers.Integral) and not isinstance(value, (bool, IntEnum))
        number = _whole(value) if plain or type(value).__name__ == kind.__name__ else None
        if number is None or number not in list(kind):
            raise setting_error(
                name, f"a member of {kind.__name__}", value, f"give one of {choices}"
            )
        return kind(number)

    return check


def instance_of(kind: type, example: str, law: str = "") -> Check:
    """An object of a class."""
    law = law or f"of the class {kind.__name__}"

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise setting_error(name, law, value, f"such as {example}")
        return value

    return check


def listed(name: str, value: Any) -> list[Any]:
    """A list or a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"{name} must be a list, not {value!r}\nwrite [{value!r}]")
    return list(value)


def mapping(of_values: Check, example: str) -> Check:
    """A dictionary from names to values that pass a check."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise setting_error(name, "a dictionary", value, f"such as {example}")
        return {
            text(f"a name in {name}", k): of_values(f"{name}[{k!r}]", v) for k, v in value.items()
        }

    return check


def _whole(value: Any) -> int | None:
    """A whole number (of numpy or an enumeration too) as an int; None for anything else."""
    if type(value).__name__ == "bool":  # numpy's bool has no __index__
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        return int(number) if number.is_integer() else None
