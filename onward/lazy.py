"""Modules that load when they are first used, so that a light path stays light."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


class LazyModule:
    """Stands for a module until something is asked of it.

    >>> fractions = LazyModule("fractions")
    >>> fractions.Fraction(1, 2)
    Fraction(1, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # how tools look at objects; the module need not be there
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


class _Deferral:
    """A finder whose modules run when something is first asked of them."""

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
    """Let other packages' imports of these modules cost nothing until they are used.

    For a program that owns its process, such as the command line: it holds for all of it.
    """
    if not any(isinstance(f, _Deferral) and f.names == set(names) for f in sys.meta_path):
        sys.meta_path.insert(0, _Deferral(names))
