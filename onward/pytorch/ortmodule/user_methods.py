"""The methods that a user's module adds to nn.Module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from torch import nn

# Methods of these packages' classes ask for the class of the module: they stay bound to it.
_LIBRARIES = {"torch", "transformers", "diffusers", "peft", "lightning", "pytorch_lightning"}


def find_user_methods(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions that a module's class adds to nn.Module's, by name; without `forward`.

    Not those that call super(), which needs an instance of the class.

    >>> class Net(nn.Module):
    ...     def half_of(self, x):
    ...         return x / 2
    >>> list(find_user_methods(Net()))
    ['half_of']
    """
    known = set(dir(nn.Module))
    return {name: f for name, f in _functions(type(module)) if name not in known}


def _functions(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for each in reversed(kind.__mro__):
        if each.__module__.split(".")[0] in _LIBRARIES:
            continue
        for name, value in vars(each).items():
            if not isinstance(value, FunctionType) or name.startswith("__"):
                continue
            inner = inspect.unwrap(value)
            if "__class__" not in inner.__code__.co_freevars:
                yield name, value


def find_overrides(module: nn.Module) -> list[str]:
    """The names of nn.Module's attributes that a module's class or the module replaces."""
    methods = {name for name, _ in _functions(type(module))} - {"forward"}
    return sorted(methods & set(dir(nn.Module)))
