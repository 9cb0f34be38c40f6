"""GraphPool: the memory that recorded CUDA graphs share.

torch fills a pool piece by piece. A later tensor may fit into none of the free pieces, and the pool
grows to more than what its graph needs at once: by 16 % for GPT-2, recomputed layer by layer.
Recording runs no kernel, and takes some ten milliseconds. So the first graph is recorded several
times, each time with one free block of another size, and then with the size that held the least.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

RESERVES = (0.9, 1.0, 1.02, 1.04, 1.06, 1.08)  # of the bytes that a graph needs at once

Recorded = tuple[torch.cuda.CUDAGraph, Any]  # with the results of the function


class GraphPool:
    """Records functions as CUDA graphs of one device, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handle: Any = None

    def record(self, function: Callable[[], Any]) -> Recorded:
        """The graph of a call, and the call's results."""
        with torch.cuda.device(self._device):
            return self._record(function)

    def stream(self) -> int | None:
        """The device's current stream; None while it is being recorded."""
        if torch.cuda.is_current_stream_capturing():
            return None
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _record(self, function: Callable[[], Any]) -> Recorded:
        if self._handle is not None:
            return _capture(function, self._handle)
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        held = _held_bytes(function, 0)
        needed = torch.cuda.max_memory_allocated() - allocated
        reserved = best_reserve(needed, held, lambda size: _held_bytes(function, size))
        self._handle = torch.cuda.graph_pool_handle()
        return _capture(function, self._handle, reserved)


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


def _held_bytes(function: Callable[[], Any], reserved: int) -> int:
    """The bytes that a graph of this function holds, recorded and dropped."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    try:
        graph, _ = _capture(function, torch.cuda.graph_pool_handle(), reserved)
    except torch.OutOfMemoryError:
        if not reserved:
            raise
        return sys.maxsize
    held = torch.cuda.memory_reserved() - before
    graph.reset()
    return held


def _capture(function: Callable[[], Any], handle: Any, reserved: int = 0) -> Recorded:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=handle, capture_error_mode="thread_local"):
            if reserved:
                torch.empty(reserved, dtype=torch.uint8, device="cuda")
            results = function()
    except BaseException:
        _leave_capture(stream)
        raise
    return graph, results


def _leave_capture(stream: torch.cuda.Stream) -> None:
    """After a failure, torch stays on its side stream, and its random numbers in the recording."""
    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[stream.device.index]
    fresh = torch.Generator(stream.device).manual_seed(generator.initial_seed())
    fresh.set_offset(generator.get_offset())
    generator.graphsafe_set_state(fresh)
