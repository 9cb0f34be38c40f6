"""Terminate a run between two nodes, in engines that run node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.errors import ProviderError


def termination_check(run_options: Any) -> Callable[[], None]:
    """A function to call before each node: it raises once `terminate` is set on the options."""

    def check() -> None:
        if run_options.terminate:
            raise terminated_error()

    return check


def terminated_error() -> ProviderError:
    return ProviderError("the run was ended by RunOptions.terminate")
