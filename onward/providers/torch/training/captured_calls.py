"""CapturedCalls: replays a function as CUDA graphs, one for each set of shapes of its arguments.

    the first call with new shapes    runs the function, which compiles it
    the second                        records its kernels as a CUDA graph, and replays them
    every other                       copies the arguments to the graph's buffers and replays

A replay costs the host one call, however many kernels there are. All graphs share one pool of
memory (graph_pool.py): results are copied out of it before another graph runs, small ones together
(packed_results.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onward.message_text import first_line
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.graph_pool import GraphPool
from onward.providers.torch.training.packed_results import PackedResults

log = logging.getLogger("onward")

MOST_GRAPHS = 64  # of one function; other shapes run uncaptured


@dataclass(frozen=True)
class _Recorded:
    """A recorded CUDA graph, with the buffers of its arguments and its results."""

    graph: Any
    arguments: list[Tensor]
    results: PackedResults

    def replay(self, given: Sequence[Tensor]) -> PackedResults:
        """Replay it; the results are valid until the next graph of the pool is replayed."""
        if given:
            torch._foreach_copy_(self.arguments, list(given))
        self.graph.replay()
        return self.results


class CapturedCalls:
    """A function of tensors whose kernels are recorded as CUDA graphs.

    A function that cannot be recorded (it waits for the device, or allocates outside of torch) runs
    as it is, after a warning. With `packs_results`, small results are `BufferedTensor`s.
    """

    def __init__(
        self, function: Callable[..., Any], pool: GraphPool, *, packs_results: bool = False
    ) -> None:
        self._function, self._pool = function, pool
        self._copy = PackedResults.copy_packed if packs_results else PackedResults.copy
        self._recorded: dict[Any, _Recorded] = {}
        self._seen: set[Any] = set()
        self._is_broken = False

    def __call__(self, *given: Tensor) -> Any:
        key = tuple([(x.shape, x.stride(), x.dtype) for x in given])
        found = self._recorded.get(key)
        if found is None:
            found = self._record(key, given)
        return self._function(*given) if found is None else self._copy(found.replay(given))

    def _record(self, key: Any, given: Sequence[Tensor]) -> _Recorded | None:
        """Record a call, if one with these shapes has run before."""
        if self._is_broken or len(self._recorded) >= MOST_GRAPHS:
            return None
        if key not in self._seen:
            self._seen.add(key)
            return None
        arguments = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in given
        ]
        try:
            graph, results = self._pool.record(lambda: PackedResults(self._function(*arguments)))
        except Exception as error:  # torch raises several, and so do kernels
            log.warning(
                "a training step cannot be recorded as a CUDA graph, it runs as it is: %s",
                first_line(error),
            )
            self._is_broken = True
            return None
        found = self._recorded[key] = _Recorded(graph, arguments, results)
        return found
