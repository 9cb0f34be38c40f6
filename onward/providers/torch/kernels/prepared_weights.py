"""Cache what a kernel computes from its weights, such as the reordered gates of an LSTM.

The weights of a lowered graph are the same tensor objects in every call. A cached result is valid
as long as they exist and are not written to.
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
_caching = ContextVar("remembering", default=True)


@contextmanager
def without_weight_cache() -> Iterator[None]:
    """Cache nothing inside: the memory belongs to the pool of a CUDA graph."""
    token = _caching.set(False)
    try:
        yield
    finally:
        _caching.reset(token)


def prepared(function: Callable[..., T]) -> Callable[..., T]:
    """Cache the last result of a function of weights, by its first argument, a tensor.

    Nothing is cached where that could be wrong: under autograd, while a graph is being compiled,
    and for tensors that were computed in inference mode.
    """
    memory: Any = WeakIdKeyDictionary()

    @functools.wraps(function)
    def run(weight: Tensor, *others: Any) -> T:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _caching.get():
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
