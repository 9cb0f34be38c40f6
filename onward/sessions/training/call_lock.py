"""A lock around methods: calls of one object from several threads run one after the other."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """An object with a reentrant lock."""

    _lock: threading.RLock


S = TypeVar("S", bound=Locked)
P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that holds the object's lock while it runs."""

    @functools.wraps(method)
    def hold_lock(self: S, /, *args: P.args, **named: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **named)

    return hold_lock
