"""Estimate one layout of a run: the memory of a process, its traffic, and the time of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket, Names, bucket_names, measure_buckets
from onward.distributed.planner.process_memory import ProcessMemory, replicated_bytes, sum_memory
from onward.distributed.planner.step_collectives import (
    count_sent,
    statistics_bytes,
    step_collectives,
)
from onward.distributed.planner.training_costs import BucketFlops, TrainingCosts
from onward.distributed.simulation.cluster import Cluster, Link
from onward.distributed.simulation.simulated_step import StepTime, StepWork, simulate_step
from onward.errors import OptionError
from onward.programs.program import Program
from onward.settings import above, check_fields, integer

GIB = 1 << 30
INSIDE = Link(latency=5e-6, bandwidth=200e9)
BETWEEN = Link(latency=1e-5, bandwidth=25e9)
_TO_HOST = 25e9  # bytes per second between a device and the memory of its CPU

Grouping = Callable[[Program, int], Sequence[Names]]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a run, one for each process.

    Attributes:
        count: devices on all nodes together
        nodes: machines, with equally many devices each
        memory: bytes of one device
        flops: floating-point operations that a device does in a second, as measured, not as sold
        inside: the link of a device to others on its node
        between: the link of a node to other nodes
    """

    count: int
    nodes: int = 1
    memory: int = 80 * GIB
    flops: float = 100e12
    inside: Link = INSIDE
    between: Link = BETWEEN

    def __post_init__(self) -> None:
        check_fields(self, count=integer(1), nodes=integer(1), memory=integer(1), flops=above(0.0))
        if self.count % self.nodes:
            raise OptionError(
                f"{self.count} devices cannot be spread evenly over {self.nodes} nodes\n"
                f"give a number of devices that {self.nodes} divides"
            )

    @property
    def per_node(self) -> int:
        return self.count // self.nodes

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            per_node=self.per_node,
            inside=self.inside,
            between=self.between,
            algorithm="hierarchical",
        )


@dataclass(frozen=True, kw_only=True)
class DistributedEstimate:
    """What one layout of a run takes.

    Attributes:
        name: of the layout, such as "ZeRO 2"
        parallel: the settings to use
        accumulate: micro-batches of a step, as in TrainingOptions
        rows: of a micro-batch of one process
        memory: of one process
        sent: bytes that a process sends in a step, by collective
        step: the simulated time of a step
        limit: bytes of a device
    """

    name: str
    parallel: Parallel
    accumulate: int
    rows: int
    memory: ProcessMemory
    sent: Mapping[str, int]
    step: StepTime = field(repr=False)
    limit: int

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.limit

    @property
    def missing(self) -> int:
        """The bytes by which it does not fit; 0 if it does."""
        return max(0, self.memory.total - self.limit)

    @property
    def order(self) -> tuple[bool, float, float, int]:
        """The best first: those that fit by time, then those that miss the fewest bytes."""
        rank = float(self.missing) if self.missing else self.step.seconds
        return (not self.fits, rank, self.step.seconds, self.memory.total)


class Estimator:
    """Estimates layouts of one program on one set of devices."""

    def __init__(
        self, costs: TrainingCosts, devices: Devices, grouping: Grouping = bucket_names
    ) -> None:
        self.costs, self.devices = costs, devices
        self._layout, self._grouping = costs.program.layout, grouping
        self._replicated = replicated_bytes(self._layout)
        self.activations = functools.cache(costs.activations)
        self._names = functools.cache(self._group)
        self._buckets = functools.cache(self._measure)
        self._segments = functools.cache(self._divide)

    def memory(self, parallel: Parallel, accumulate: int, rows: int) -> ProcessMemory:
        """The memory of a process, for micro-batches of `rows` rows."""
        buckets = self._buckets(_bucket_limit(parallel))
        return sum_memory(
            buckets,
            parallel,
            accumulate=accumulate,
            activations=self.activations(rows),
            replicated=self._replicated,
        )

    def estimate(
        self, name: str, parallel: Parallel, accumulate: int, rows: int
    ) -> DistributedEstimate:
        """The memory, the traffic and the time of a layout."""
        parallel = parallel.over(self.devices.count)
        buckets = self._buckets(_bucket_limit(parallel))
        segments = self._segments(_bucket_limit(parallel), rows)
        memory = self.memory(parallel, accumulate, rows)
        statistics = statistics_bytes(self._layout)
        work = StepWork(
            buckets=tuple(buckets),
            forward=tuple(each.forward / self.devices.flops for each in segments),
            backward=tuple(each.backward / self.devices.flops for each in segments),
            update=2 * memory.host / _TO_HOST,  # read before the update, written after it
            accumulate=accumulate,
            statistics=tuple(statistics),
        )
        sent = count_sent(step_collectives(buckets, parallel, accumulate, statistics), parallel)
        return DistributedEstimate(
            name=name,
            parallel=parallel,
            accumulate=accumulate,
            rows=rows,
            memory=memory,
            sent=dict(sent),
            step=simulate_step(work, parallel, self.devices.cluster),
            limit=self.devices.memory,
        )

    def _group(self, limit: int) -> Sequence[Names]:
        return self._grouping(self.costs.program, limit)

    def _measure(self, limit: int) -> list[Bucket]:
        return measure_buckets(self._layout, self._names(limit))

    def _divide(self, limit: int, rows: int) -> list[BucketFlops]:
        return self.costs.bucket_flops(self._names(limit), rows)


def _bucket_limit(parallel: Parallel) -> int:
    if parallel.bucket == "auto":
        raise OptionError(
            "a bucket size that is measured when the run starts cannot be planned\n"
            "choose a number of bytes"
        )
    return parallel.bucket
