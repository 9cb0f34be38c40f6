"""Settings: attributes whose names are known and whose values are checked when they are set.

A check takes the setting's full name and the value that was given; it returns the value to keep,
or raises an OptionError that says what the setting is.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from onward.errors import OptionAttributeError, OptionError, OptionTypeError
from onward.names import suggest_names

Check = Callable[[str, Any], Any]
T = TypeVar("T")

_INT32 = (1 << 31) - 1  # the largest number that onnxruntime keeps


class CheckedSettings:
    """Base of settings that may be changed: known names alone, and values that can hold."""

    _checks: ClassVar[Mapping[str, Check]]
    _absent: ClassVar[Mapping[str, str]] = {}  # names that the peer has: what to do instead

    if not TYPE_CHECKING:  # which would take any name to be allowed

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
    """A class whose refusal of an unknown keyword suggests the ones that are meant."""
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
    """A frozen dataclass whose refusal to be changed is an OptionError with the way out."""

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
    """Whether an object's class, or one that it derives from, has this name, wherever it lives."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


# -- checks ------------------------------------------------------------------------------------


def anything(name: str, value: Any) -> Any:
    """Any value, as it is."""
    return value


def flag(name: str, value: Any) -> bool:
    """True or False, or a number or None that stands for one, as onnxruntime takes them."""
    if value is None or isinstance(value, numbers.Real) or type(value).__name__ == "bool":
        return bool(value)
    raise _refusal(name, "True or False", value)


def text(name: str, value: Any) -> str:
    """A string, or bytes in UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise _refusal(name, "a string", value)


def path_text(name: str, value: Any) -> str:
    """A path, as a string; an empty one stands for none."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _refusal(name, "a path", value, "give a path, or '' for none")
    return os.fsdecode(value)


def whole_number(low: int = 0, high: int = _INT32, hint: str = "") -> Check:
    """A whole number from `low` to `high`."""
    law = f"a whole number from {low} to {high}" if high != _INT32 else (
        f"a whole number, at least {low}"
    )  # fmt: skip

    def check(name: str, value: Any) -> int:
        number = _whole(value)
        if number is None or not low <= number <= high:
            raise _refusal(name, law, value, hint)
        return number

    return check


def byte_count(name: str, value: Any) -> int | None:
    """A number of bytes above 0, or None."""
    number = None if value is None else _whole(value)
    if value is not None and (number is None or number <= 0):
        raise _refusal(name, "a number of bytes above 0", value, "give None for no limit")
    return number


def seconds(name: str, value: Any) -> float | None:
    """A number of seconds above 0, or None."""
    if value is None:
        return None
    known = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not known or not 0 < value < math.inf:
        law = "a number of seconds above 0, or None"
        raise _refusal(name, law, value, "give None for no limit")
    return value  # type: ignore[no-any-return]


def one_of(kind: type[IntEnum]) -> Check:
    """A member of an enumeration: ours, onnxruntime's of the same name, or its number."""
    choices = ", ".join(f"{member.name} ({member.value})" for member in kind)

    def check(name: str, value: Any) -> IntEnum:
        plain = isinstance(value, numbers.Integral) and not isinstance(value, (bool, IntEnum))
        number = _whole(value) if plain or type(value).__name__ == kind.__name__ else None
        if number is None or number not in list(kind):
            raise _refusal(name, f"of {kind.__name__}", value, f"give one of {choices}")
        return kind(number)

    return check


def instance_of(kind: type, example: str) -> Check:
    """An object of a class."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise _refusal(name, f"of the class {kind.__name__}", value, f"such as {example}")
        return value

    return check


def mapping(of_values: Check, example: str) -> Check:
    """A dictionary from names to values that a check of their own allows."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _refusal(name, "a dictionary", value, f"such as {example}")
        return {
            text(f"a name in {name}", k): of_values(f"{name}[{k!r}]", v) for k, v in value.items()
        }

    return check


def _whole(value: Any) -> int | None:
    """A whole number (numpy's or an enumeration's too) as Python's int; None for anything else."""
    if type(value).__name__ == "bool":  # numpy's has no index
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        return int(number) if number.is_integer() else None


def _refusal(name: str, law: str, value: Any, hint: str = "") -> OptionError:
    setting = name.rpartition(".")[2]
    return OptionError(f"{name} is {law}, not {value!r}\n{hint or f'give {setting} such a value'}")
