"""Modules that load when they are first used."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from onward.lazy import LazyModule


def test_a_module_that_is_not_there_fails_where_it_is_used() -> None:
    module: Any = LazyModule("onward.no_such_module")
    assert inspect.unwrap(module) is module  # as doctest looks at every name of a file
    assert not hasattr(module, "__wrapped__")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = module.anything
