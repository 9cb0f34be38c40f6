"""GraphPool: the memory that recorded CUDA graphs share.

torch fills a pool piece by piece. A later tensor may fit into none of the free pieces, and the pool
grows to more than what its graph needs at once: by 16 % for GPT-2, recomputed layer by layer.
Recording runs no kernel, and takes some ten milliseconds. So the first graphs are recorded several
times, each time with one free block of another size, and then with the size that held the least.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

RESERVES = (0.9, 1.0, 1.02, 1.04, 1.06, 1.08)  # of the bytes that a graph needs at once

Recorded = tuple[torch.cuda.CUDAGraph, Any]  # with the results of the function
Function = Callable[[dict[str, Any]], Any]  # of values by name, to which it may add others


class GraphPool:
    """Records functions as CUDA graphs of one device, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handle: Any = None

    def record(self, function: Callable[[], Any]) -> Recorded:
        """The graph of a call, and the call's results."""
        return self.record_sequence([lambda _: function()], {})[0]

    def record_sequence(
        self, functions: Sequence[Function], values: Mapping[str, Any]
    ) -> list[Recorded]:
        """The graphs of functions of which later ones read what earlier ones computed."""
        with torch.cuda.device(self._device):
            reserved = self._reserve(functions, values)
            shared, recorded = dict(values), []
            for function in functions:
                recorded.append(_capture([function], shared, self._handle, reserved))
                reserved = 0
            return recorded

    def stream(self) -> int | None:
        """The device's current stream; None while it is being recorded."""
        if torch.cuda.is_current_stream_capturing():
            return None
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _reserve(self, functions: Sequence[Function], values: Mapping[str, Any]) -> int:
        """The bytes to reserve for the first graphs; others use the memory that is there."""
        if self._handle is not None:
            return 0
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        held = _held_bytes(functions, values, 0)
        needed = torch.cuda.max_memory_allocated() - allocated
        found = best_reserve(needed, held, lambda size: _held_bytes(functions, values, size))
        self._handle = torch.cuda.graph_pool_handle()
        return found


def best_reserve(needed: int, held: int, try_reserve: Callable[[int], int]) -> int:
    """The bytes to reserve such that a graph holds the least; 0 if it does without a reserve.

    `needed` is what the graph needs at once, `held` what it holds without a reserve.
    """
    best = 0
    for reserved in (int(share * needed) for share in RESERVES):
        tried = try_reserve(reserved) if reserved < held else held
        if tried < held:
            best, held = reserved, tried
    return best


def _held_bytes(functions: Sequence[Function], values: Mapping[str, Any], reserved: int) -> int:
    """The bytes that one graph of these functions holds, recorded and dropped."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    try:
        handle = torch.cuda.graph_pool_handle()
        graph, _ = _capture(functions, dict(values), handle, reserved)
    except torch.OutOfMemoryError:
        if not reserved:
            raise
        return sys.maxsize
    held = torch.cuda.memory_reserved() - before
    graph.reset()
    return held


def _capture(
    functions: Sequence[Function], shared: dict[str, Any], handle: Any, reserved: int
) -> Recorded:
    """One graph of functions, with the results of the last one."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    results: list[Any] = []
    try:
        with torch.cuda.graph(graph, pool=handle, capture_error_mode="thread_local"):
            if reserved:
                torch.empty(reserved, dtype=torch.uint8, device="cuda")
            for function in functions:
                results.append(function(shared))  # all are kept: they hold their memory
    except BaseException:
        _leave_capture(stream)
        raise
    return graph, results[-1]


def _leave_capture(stream: torch.cuda.Stream) -> None:
    """After a failure, torch stays on its side stream, and its random numbers in the recording."""
    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[stream.device.index]
    fresh = torch.Generator(stream.device).manual_seed(generator.initial_seed())
    fresh.set_offset(generator.get_offset())
    generator.graphsafe_set_state(fresh)
