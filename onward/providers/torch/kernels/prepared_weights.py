"""What a kernel makes of its weights, made once: the gates of a recurrent layer reordered.

A lowered graph holds its weights as tensors that stay the same objects from call to call. So what
was made of them is kept for as long as they live and nobody has written into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from onward.providers.torch.dtypes import Tensor

T = TypeVar("T")
_remembering = ContextVar("remembering", default=True)


@contextmanager
def without_weight_cache() -> Iterator[None]:
    """Remember nothing here: the memory belongs to somebody else, a CUDA graph's pool."""
    token = _remembering.set(False)
    try:
        yield
    finally:
        _remembering.reset(token)


def prepared(function: Callable[..., T]) -> Callable[..., T]:
    """Remember what a function of weights returned: by its first argument, a tensor, the newest.

    Nothing is remembered where it could be wrong: under autograd, while a graph is being
    compiled, and for tensors that were themselves computed in inference mode.
    """
    memory: Any = WeakIdKeyDictionary()

    @functools.wraps(function)
    def run(weight: Tensor, *others: Any) -> T:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _remembering.get():
            return function(weight, *others)
        arguments = (weight, *others)
        if any(isinstance(a, Tensor) and a.is_inference() for a in arguments):
            return function(weight, *others)
        writes = [a._version for a in arguments if isinstance(a, Tensor)]
        entry = memory.get(weight)
        if entry is None or entry[0] != writes or not _same(entry[1], others):
            entry = memory[weight] = (writes, others, function(weight, *others))
        result: T = entry[2]
        return result

    return run


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(x is y or (not isinstance(x, Tensor) and x == y) for x, y in pairs)
