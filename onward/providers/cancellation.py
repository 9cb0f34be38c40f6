"""Stopping a run between two nodes, in the engines that go node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.errors import ProviderError


def stopper(run_options: Any) -> Callable[[], None]:
    """What an engine calls before each node: it raises once the options say `terminate`."""

    def check() -> None:
        if run_options.terminate:
            raise ended()

    return check


def ended() -> ProviderError:
    return ProviderError("the run was ended by RunOptions.terminate")
