"""Turns: calls of one object from several threads, one after the other."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Turned(Protocol):
    """What has a lock that a thread may take again while it holds it."""

    _turn: threading.RLock


S = TypeVar("S", bound=Turned)
P = ParamSpec("P")
R = TypeVar("R")


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that waits until no other thread is in one of the same object."""

    @functools.wraps(method)
    def waiting(self: S, /, *args: P.args, **named: P.kwargs) -> R:
        with self._turn:
            return method(self, *args, **named)

    return waiting
