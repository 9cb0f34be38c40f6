"""Simulate one training step: segments of compute, and collectives that overlap with them.

A bucket's reduction starts when its backward segment has ended on every process and the link is
free. With ZeRO 3, the parameters of a segment are gathered while the segment before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.planner.step_collectives import Collective, group_size, step_collectives
from onward.distributed.simulation.cluster import Cluster, collective_seconds, link_of
from onward.distributed.simulation.task_timeline import (
    Interval,
    Task,
    covered_seconds,
    overlap_seconds,
    run_tasks,
)
from onward.errors import OptionError

COMPUTE = "compute"


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The compute of one process in a step; seconds are of one micro-batch, by bucket.

    `forward[i]` and `backward[i]` are the segments that need bucket i: the backward pass runs from
    the first bucket to the last, the forward pass from the last to the first.
    """

    buckets: tuple[Bucket, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float = 0.0
    accumulate: int = 1
    statistics: tuple[int, ...] = ()  # bytes of running statistics, which are averaged

    def __post_init__(self) -> None:
        if not len(self.buckets) == len(self.forward) == len(self.backward) >= 1:
            raise OptionError("each bucket needs the seconds of its forward and backward segment")

    @property
    def segments(self) -> list[float]:
        """The seconds of all segments in the order in which they run, without the update."""
        return [*reversed(self.forward), *self.backward] * self.accumulate

    @property
    def seconds(self) -> float:
        """The time of a step of one process alone."""
        return sum(self.segments) + self.update

    def scaled(self, factor: float) -> StepWork:
        """The same work on a processor that takes `factor` times as long."""
        return replace(
            self,
            forward=tuple(factor * each for each in self.forward),
            backward=tuple(factor * each for each in self.backward),
            update=factor * self.update,
        )


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The times of a simulated step, in seconds.

    `compute` is that of one process without waiting; `communication` is how long a link is busy;
    `hidden` is the share of it during which the process computes: 1 if there is none.
    """

    seconds: float
    compute: float
    communication: float
    hidden: float
    timeline: tuple[Interval, ...] = field(default=(), repr=False, compare=False)

    @property
    def efficiency(self) -> float:
        """The share of the step in which a process does its own work."""
        return self.compute / self.seconds if self.seconds else 1.0


def simulate_step(
    work: StepWork,
    parallel: Parallel,
    cluster: Cluster,
    *,
    spread: float = 0.0,
    draws: int = 16,
    seed: int = 0,
) -> StepTime:
    """The time of a step of all processes.

    `spread` is the relative standard deviation of a segment's time: every collective waits for the
    slowest process, and the times are means over `draws` steps.
    """
    if spread == 0.0:
        return _simulate(work, work.segments, parallel, cluster)
    rng = np.random.default_rng(seed)
    ranks = group_size(parallel, "whole")
    steps = [
        _simulate(work, _slowest(work.segments, ranks, spread, rng), parallel, cluster)
        for _ in range(draws)
    ]
    return StepTime(
        seconds=float(np.mean([step.seconds for step in steps])),
        compute=work.seconds,
        communication=float(np.mean([step.communication for step in steps])),
        hidden=float(np.mean([step.hidden for step in steps])),
        timeline=steps[0].timeline,
    )


def _slowest(
    segments: Sequence[float], ranks: int, spread: float, rng: np.random.Generator
) -> list[float]:
    """The segments of a process that ends each when the slowest of all processes does.

    Factors are log-normal with mean 1.
    """
    sigma = np.sqrt(np.log1p(spread**2))
    factors = np.exp(sigma * rng.standard_normal((ranks, len(segments))) - sigma**2 / 2)
    ends = np.cumsum(factors * np.asarray(segments), axis=1).max(axis=0)
    return [float(each) for each in np.diff(ends, prepend=0.0)]


def _simulate(
    work: StepWork, segments: Sequence[float], parallel: Parallel, cluster: Cluster
) -> StepTime:
    collectives = step_collectives(work.buckets, parallel, work.accumulate, work.statistics)
    built = _StepTasks(work, segments, collectives, parallel, cluster)
    timeline = run_tasks(built.tasks)
    computing = [each for i, each in enumerate(timeline) if i not in built.sending]
    sending = [timeline[i] for i in built.sending]
    busy = covered_seconds(sending)
    return StepTime(
        seconds=max((each.end for each in timeline), default=0.0),
        compute=work.seconds,
        communication=busy,
        hidden=min(max(overlap_seconds(sending, computing) / busy, 0.0), 1.0) if busy else 1.0,
        timeline=tuple(timeline),
    )


class _StepTasks:
    """The tasks of a step: segments, one after the other, and the collectives between them."""

    def __init__(
        self,
        work: StepWork,
        segments: Sequence[float],
        collectives: Sequence[Collective],
        parallel: Parallel,
        cluster: Cluster,
    ) -> None:
        self.tasks: list[Task] = []
        self.sending: set[int] = set()  # numbers of the tasks that are collectives
        self._parallel, self._cluster = parallel, cluster
        self._segments: list[int] = []  # numbers of the tasks that are segments
        self._results: list[int] = []  # those that sum the results of a micro-batch
        of_phase: dict[tuple[str, int, int], list[Collective]] = {}
        for each in collectives:
            key = (each.phase, each.micro_batch, each.bucket)
            of_phase.setdefault(key, []).append(each)
        self._of_phase, durations = of_phase, iter(segments)
        reduced = [
            number
            for micro_batch in range(work.accumulate)
            for number in self._micro_batch(micro_batch, len(work.buckets), durations)
        ]
        for each in of_phase.get(("norm", work.accumulate - 1, -1), ()):
            reduced = [self._send(each, reduced)]
        update = self._add(Task("update", COMPUTE, work.update, tuple(reduced)))
        for each in (each for each in collectives if each.phase == "update"):
            self._send(each, (update,))

    def _micro_batch(self, m: int, buckets: int, durations: Iterator[float]) -> list[int]:
        """The segments of a micro-batch; returns the tasks that the update waits for."""
        # the process waits for the numbers of the micro-batch before
        begin = [
            self._send(each, self._results) for each in self._of_phase.get(("begin", m, -1), ())
        ]
        for i in reversed(range(buckets)):
            self._compute(f"forward {i}", next(durations), ("forward", m, i), self._results)
        reduced = []
        for i in range(buckets):
            last = self._compute(f"backward {i}", next(durations), ("backward", m, i), begin)
            for each in self._of_phase.get(("reduce", m, i), ()):
                last = self._send(each, (last,))
            reduced.append(last)
        ended = self._segments[-1:]
        self._results = [self._send(each, ended) for each in self._of_phase.get(("end", m, -1), ())]
        return [*reduced, *self._results]

    def _compute(
        self, name: str, seconds: float, gathered: tuple[str, int, int], after: Sequence[int]
    ) -> int:
        """A segment, after the one before it; parameters are gathered while that one runs."""
        room = tuple(self._segments[-2:-1])  # its parameters are freed, so that two are held
        before = [self._send(each, room) for each in self._of_phase.get(gathered, ())]
        after = (*self._segments[-1:], *before, *after)
        self._segments.append(self._add(Task(name, COMPUTE, seconds, after)))
        return self._segments[-1]

    def _send(self, each: Collective, after: Sequence[int]) -> int:
        link = link_of(each, self._parallel, self._cluster) if self._cluster.overlap else COMPUTE
        seconds = collective_seconds(each, self._parallel, self._cluster)
        number = self._add(Task(f"{each.kind} {each.bucket}", link, seconds, tuple(after)))
        self.sending.add(number)
        return number

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1
