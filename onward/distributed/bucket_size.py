"""Measure how many bytes of gradients to send at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from onward.distributed.communicator import Communicator

SIZES = tuple(1 << power for power in range(16, 25, 2))  # 64 KiB to 16 MiB
_ENOUGH = 0.8  # of the best rate
_REPEATS = 5


def measure_bucket_size(
    communicator: Communicator,
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """The smallest number of bytes that is sent at nearly the best rate; alike on all processes.

    Small buckets start early, and their latency is paid more often.
    """
    if communicator.size == 1:
        return SIZES[-1]
    seconds = torch.zeros(len(SIZES), dtype=torch.float64)
    for i, size in enumerate(SIZES):
        vector = torch.zeros(size // 4, device=device)
        times = []
        for _ in range(_REPEATS):
            started = clock()
            communicator.all_reduce(vector).wait()
            times.append(clock() - started)
        seconds[i] = statistics.median(times)
    communicator.all_reduce(seconds, "max").wait()
    return choose_bucket_size(seconds.tolist())


def choose_bucket_size(seconds: list[float]) -> int:
    """The smallest of SIZES at nearly the best rate, if they take so many seconds.

    >>> choose_bucket_size([1e-3, 1.2e-3, 2e-3, 7e-3, 28e-3]) >> 20
    1
    """
    rates = [size / max(each, 1e-9) for size, each in zip(SIZES, seconds)]
    return next(size for size, rate in zip(SIZES, rates) if rate >= _ENOUGH * max(rates))
