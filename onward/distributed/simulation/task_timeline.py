"""Schedule tasks that depend on each other on resources that run one task at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Work of a duration on a resource; `after` are the numbers of tasks that must end before."""

    name: str
    resource: str
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Interval:
    """When a task runs."""

    task: Task
    start: float
    end: float


def run_tasks(tasks: Sequence[Task]) -> list[Interval]:
    """Run each task as soon as it can: all before it have ended, and its resource is free.

    Of several that wait for a resource, the one that became ready first runs, then the first in
    the list. Returns the interval of each task, in the order of the list.
    """
    readers: list[list[int]] = [[] for _ in tasks]
    waiting = [len(set(task.after)) for task in tasks]
    for number, task in enumerate(tasks):
        for earlier in set(task.after):
            readers[earlier].append(number)
    queues: dict[str, list[tuple[float, int]]] = {task.resource: [] for task in tasks}
    free = dict.fromkeys(queues, 0.0)
    ready = [0.0] * len(tasks)
    for number, task in enumerate(tasks):
        if not waiting[number]:
            heapq.heappush(queues[task.resource], (0.0, number))
    found: list[Interval | None] = [None] * len(tasks)
    for _ in tasks:
        # the queue whose first task starts earliest: no later event can come before it
        resource = min(
            (name for name in queues if queues[name]),
            key=lambda name: (max(free[name], queues[name][0][0]), queues[name][0][1]),
        )
        at, number = heapq.heappop(queues[resource])
        start = max(free[resource], at)
        end = free[resource] = start + tasks[number].seconds
        found[number] = Interval(tasks[number], start, end)
        for reader in readers[number]:
            ready[reader] = max(ready[reader], end)
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(queues[tasks[reader].resource], (ready[reader], reader))
    return [each for each in found if each is not None]


def covered_seconds(intervals: Sequence[Interval]) -> float:
    """The length of the union of intervals."""
    total = end = 0.0
    for each in sorted(intervals, key=lambda each: each.start):
        total += max(0.0, each.end - max(end, each.start))
        end = max(end, each.end)
    return total


def overlap_seconds(a: Sequence[Interval], b: Sequence[Interval]) -> float:
    """How long an interval of `a` and one of `b` last at the same time."""
    return covered_seconds(a) + covered_seconds(b) - covered_seconds([*a, *b])
