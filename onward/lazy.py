"""Modules that load when they are first used, so that a light path stays light."""

from __future__ import annotations

import importlib
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
