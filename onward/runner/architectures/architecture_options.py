"""The options of an architecture, read from its function: names, types, defaults, explanations."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir

from onward.errors import OptionError, OptionTypeError
from onward.message_text import suggest_names
from onward.settings import integer, number, setting_error, several, true_or_false

Architecture = Callable[..., ir.Model]

_SHARES = ("dropout",)  # numbers from 0 to below 1; other numbers are factors above 0
_LARGEST_FACTOR = 16.0


@dataclass(frozen=True)
class ArchitectureOption:
    """One option: its name, the type of its values, its default and its explanation."""

    name: str
    kind: Any  # int, float, bool, a tuple of ints or a Literal
    default: Any
    explanation: str

    @property
    def choices(self) -> tuple[Any, ...]:
        """The valid values, where they are few."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def length(self) -> int | None:
        """How many sizes it takes: None for any number, 0 where it is not a list of sizes."""
        if typing.get_origin(self.kind) is not tuple:
            return 0
        parts = typing.get_args(self.kind)
        return None if Ellipsis in parts else len(parts)

    def check(self, owner: str, value: Any) -> Any:
        """The value to build with; an OptionError names the valid ones."""
        name = f"{owner}: {self.name}"
        if value is None and self.default is None:
            return None
        if self.choices:
            if isinstance(value, bool) or value not in self.choices:
                listed = ", ".join(map(str, self.choices))
                raise setting_error(name, f"one of {listed}", value)
            return value
        if self.kind is bool:
            return true_or_false(name, value)
        if self.kind is float:
            if self.name in _SHARES:
                return number(high=1.0, below=True)(name, value)
            return number(0.1, _LARGEST_FACTOR)(name, value)
        if self.kind is int:
            return integer(1)(name, value)
        count = "" if self.length is None else f"{self.length} "
        law = f"{count}sizes, such as {self.show(self.default or (3, 32, 32))}"
        sizes = several(integer(1), law, self.length)(name, value)
        if not sizes:
            raise setting_error(name, law, value)
        return sizes

    def parse(self, text: str) -> Any:
        """The value that a text stands for, such as 3x32x32; a text of no meaning as it is.

        >>> ArchitectureOption("image", tuple[int, int, int], (3, 32, 32), "").parse("1x28x28")
        (1, 28, 28)
        """
        if self.length != 0:
            parts = re.split(r"[x,]", text.strip())
            return tuple(map(int, parts)) if all(p.isdecimal() for p in parts) else text
        for choice in self.choices:
            if str(choice) == text:
                return choice
        kind = type(self.choices[0]) if self.choices else self.kind
        try:
            return kind(text)
        except ValueError:
            return text

    def show(self, value: Any) -> str:
        """A value as the command line takes it.

        >>> ArchitectureOption("image", tuple[int, int, int], (3, 32, 32), "").show((3, 32, 32))
        '3x32x32'
        """
        if isinstance(value, tuple):
            return ("," if self.length is None else "x").join(map(str, value))
        return str(value)


def options_of(architecture: Architecture) -> dict[str, ArchitectureOption]:
    """The options of an architecture by their names, in order."""
    parameters = inspect.signature(architecture).parameters.values()
    hints = typing.get_type_hints(architecture)
    explanations = _explanations(inspect.getdoc(architecture) or "")
    return {
        each.name: ArchitectureOption(
            each.name, _without_none(hints[each.name]), each.default, explanations[each.name]
        )
        for each in parameters
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_options(
    owner: str, known: Mapping[str, ArchitectureOption], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options to call an architecture with; unknown names and values are errors."""
    for name in given:
        if name not in known:
            raise OptionTypeError(f"{owner} has no option {name!r}\n{suggest_names(name, known)}")
    return {name: known[name].check(owner, value) for name, value in given.items()}


def description(architecture: Architecture) -> str:
    """The docstring without the section of options."""
    return (inspect.getdoc(architecture) or "").partition("\nOptions:")[0].strip()


def _without_none(hint: Any) -> Any:
    """int | None -> int"""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _explanations(docstring: str) -> dict[str, str]:
    """The lines `name: explanation` of the section of options."""
    section = docstring.partition("\nOptions:")[2]
    return dict(re.findall(r"^ +(\w+): (.*)$", section, re.M))


def unknown_architecture(name: object, known: Mapping[str, Architecture]) -> OptionError:
    """The error for an architecture that does not exist."""
    return OptionError(f"no architecture {name!r}\n{suggest_names(str(name), known)}")
