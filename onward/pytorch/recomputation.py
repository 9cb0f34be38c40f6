"""Run what torch.utils.checkpoint recomputes on captured graphs, as its first run was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils import checkpoint as checkpointing

_torch: Any = checkpointing
_Reentrant = checkpointing.CheckpointFunction


@contextmanager
def around_recomputation(context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let functions that are checkpointed in this block run in a context, then and recomputed.

    The block has ended when the backward pass calls them again.
    """
    generator = _torch._checkpoint_without_reentrant_generator
    reentrant = _torch.CheckpointFunction

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return call

    def without_reentrant(function: Callable[..., Any], *rest: Any, **kwargs: Any) -> Any:
        return generator(inside(function), *rest, **kwargs)

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], *rest: Any) -> Any:
            return _Reentrant.apply(inside(function), *rest)  # type: ignore[no-untyped-call]

    _torch._checkpoint_without_reentrant_generator = without_reentrant
    _torch.CheckpointFunction = Reentrant
    try:
        yield
    finally:
        _torch._checkpoint_without_reentrant_generator = generator
        _torch.CheckpointFunction = reentrant
