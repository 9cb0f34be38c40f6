"""The memory of each process of a distributed run, from the sizes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket, Names, measure_buckets
from onward.distributed.sharding.gather_plan import Reads
from onward.programs.program import Layout, Shape
from onward.programs.vector_offsets import place


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """The bytes of one process by what they hold.

    Attributes:
        parameters: parameters or this process's shard of them, statistics and frozen weights
        gradients: those that await the update
        optimizer: the optimizer's state
        activations: values of the train graph that are alive at once
        buffers: buckets that are gathered or reduced, in addition to what is kept
        host: this process's part in the memory of the CPU, where it is offloaded; not in `total`
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    host: int = 0

    @property
    def total(self) -> int:
        """The bytes on the device."""
        kept = self.parameters + self.gradients + self.optimizer
        return kept + self.activations + self.buffers


def bytes_per_process(
    layout: Layout,
    parallel: Parallel,
    *,
    buckets: Sequence[Names] | None = None,
    accumulate: int | None = None,
    activations: int = 0,
    plan: Reads | None = None,
) -> ProcessMemory:
    """The memory of each process of a run.

    `buckets` are names of parameters that are reduced together; None: each update of the layout, as
    `split_updates` cut it. `accumulate` is the number of micro-batches; None: the program's.
    `plan` has the buckets that are held while each segment runs with ZeRO 3, as an engine plans
    it; None: two at a time.
    """
    return sum_memory(
        measure_buckets(layout, buckets),
        parallel,
        accumulate=layout.settings.accumulate if accumulate is None else accumulate,
        activations=activations,
        replicated=replicated_bytes(layout),
        plan=plan,
    )


def sum_memory(
    buckets: Sequence[Bucket],
    parallel: Parallel,
    *,
    accumulate: int = 1,
    activations: int = 0,
    replicated: int = 0,
    plan: Reads | None = None,
) -> ProcessMemory:
    """The memory of each process, from the sizes of buckets.

    `replicated` are tensors that every process holds whole.
    """
    n, zero = parallel.shard, parallel.zero if parallel.shard > 1 else 0
    sizes = [bucket.padded(n) for bucket in buckets]
    whole, shard = sum(sizes), sum(sizes) // n
    state, offload = _owned_state(buckets, n), parallel.offload and n > 1
    parameters = whole if zero < 3 else 0 if offload else shard
    gradients = whole if zero < 2 else 0 if offload else shard
    if parallel.data == n == 1 and accumulate > 1:  # one process adds vectors that are complete
        gradients *= 2
    return ProcessMemory(
        parameters=parameters + replicated,
        gradients=gradients,
        optimizer=0 if offload else state,
        activations=activations,
        buffers=_temporary_bytes(sizes, parallel, accumulate)
        + (_gathered_bytes(sizes, plan) if zero == 3 else 0),
        host=state + 2 * shard if offload else 0,
    )


def _temporary_bytes(sizes: Sequence[int], parallel: Parallel, accumulate: int) -> int:
    """Gradients that are not kept: whole ones that are computed and reduced, sums that arrive."""
    n, zero = parallel.shard, parallel.zero if parallel.shard > 1 else 0
    if parallel.data == n == 1:
        return 0
    if zero < 2:  # what is computed is added to the gradients of earlier micro-batches
        return max(sizes) if accumulate > 1 else 0
    two = sum(sorted(sizes)[-2:])  # one is computed, one on its way
    return two + (two // n if accumulate > 1 or parallel.offload else 0)


def _gathered_bytes(sizes: Sequence[int], plan: Reads | None) -> int:
    """The most bytes of parameters that are gathered at once."""
    if plan is None:
        return sum(sorted(sizes)[-2:])
    return max(sum(sizes[bucket] for bucket in held) for held in plan)


def _owned_state(buckets: Sequence[Bucket], n: int) -> int:
    """The optimizer state of a process; of whole tensors, about as much for each owner."""
    separate = sum(bucket.separate for bucket in buckets)
    largest = max(bucket.largest for bucket in buckets)
    slots = sum(math.ceil(bucket.slots * bucket.shard(n)) for bucket in buckets)
    return slots + max(math.ceil(separate / n), largest)


def replicated_bytes(layout: Layout) -> int:
    """The bytes of tensors that every process holds whole: statistics and frozen weights."""
    shapes: dict[str, dict[str, Shape]] = {}
    for name in layout.state:
        shapes.setdefault(layout.initial[name].dtype.name, {})[name] = layout.initial[name].shape
    statistics = sum(
        place(named, np.dtype(dtype)).size * np.dtype(dtype).itemsize
        for dtype, named in shapes.items()
    )
    return statistics + sum(layout.initial[name].nbytes for name in layout.frozen)
