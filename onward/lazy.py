"""Import modules when they are first used, so that light paths stay light."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


class LazyModule:
    """A module that is imported at the first access to one of its attributes.

    >>> fractions = LazyModule("fractions")
    >>> fractions.Fraction(1, 2)
    Fraction(1, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # inspection by tools must not import the module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


class _DeferringFinder:
    """A finder whose modules are executed at the first access to an attribute."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports(*names: str) -> None:
    """Defer these modules' execution until they are used, whichever package imports them.

    For a program that owns its process, such as the command line: it affects all of it.
    """
    if not any(isinstance(f, _DeferringFinder) and f.names == set(names) for f in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder(names))
