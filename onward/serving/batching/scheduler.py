"""The queue of one model: which waiting requests form the next batch, and when.

Pure: the time is an argument, and there are no threads and no timers.

scheduler.add(work)
found = scheduler.next_batch(now)  # a list of work to run now, or the time to ask again
"""

from __future__ import annotations

import heapq
import math
from bisect import insort_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from onward.serving.batching.batch_joining import FixedJoining, JoinRule, LearnedJoining


class WaitingRequest(Protocol):
    """A waiting request, as the scheduler sees it."""

    key: Hashable  # work of the same key can run in one batch
    lengths: Hashable  # what is padded if they differ within a batch
    rows: int
    priority: int  # 1 is served before 2
    arrival: float
    deadline: float  # infinite: it may wait for ever


W = TypeVar("W", bound=WaitingRequest)
_PRIORITY: Callable[[WaitingRequest], int] = attrgetter("priority")


class Delay(Protocol):
    """How long a batch that is not full waits for more."""

    def start_time(self, rows: int, oldest: float, now: float) -> float:
        """When a batch of these rows should start; the oldest of them arrived at `oldest`."""
        ...


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The sizes of batches and of the queue."""

    max_rows: int = 1
    preferred: tuple[int, ...] = ()  # sizes that are sent without waiting longer
    max_waiting: int = 1024


class BatchScheduler(Generic[W]):
    """A bounded queue that forms batches of compatible work.

    Within one key, work leaves by priority and then in the order of its arrival; where only equal
    lengths are joined, those of one length. Among keys whose batch is due, the most urgent and
    oldest goes first.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        delay: Delay,
        joining: FixedJoining | LearnedJoining | None = None,
    ) -> None:
        self.policy, self.delay = policy, delay
        self.joining = joining or FixedJoining()
        self.rule_of_last: JoinRule | None = None  # None: there was nothing to join it with
        self._queues: dict[Hashable, list[W]] = {}  # each sorted by priority, then arrival
        self._deadlines: list[tuple[float, int, W]] = []  # a heap; work that left is still in it
        self.count = 0  # of waiting work
        self._with_deadline = 0

    def __len__(self) -> int:
        return self.count

    @property
    def is_full(self) -> bool:
        """No more work is accepted."""
        return self.count >= self.policy.max_waiting

    @property
    def next_deadline(self) -> float:
        """When `take_expired` has something to take at the latest; infinite: never."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def add(self, work: W) -> bool:
        """Queue work; False if the queue is full."""
        if self.count >= self.policy.max_waiting:
            return False
        queue = self._queues.get(work.key)
        if queue is None:
            self._queues[work.key] = [work]
        elif work.priority >= queue[-1].priority:
            queue.append(work)
        else:
            insort_right(queue, work, key=_PRIORITY)
        self.count += 1
        if work.deadline != math.inf:
            self._with_deadline += 1  # a number of its own: heaps compare no work
            heapq.heappush(self._deadlines, (work.deadline, self._with_deadline, work))
            if len(self._deadlines) > 2 * self.count + 64:
                self._forget_deadlines()
        return True

    def remove(self, work: W) -> bool:
        """Drop waiting work; False if it is not waiting."""
        queue = self._queues.get(work.key, [])
        for place, each in enumerate(queue):
            if each is work:
                self._take(work.key, queue, place, place + 1)
                return True
        return False

    def take_expired(self, now: float) -> list[W]:
        """Drop the work whose deadline has passed."""
        expired: list[W] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, work = heapq.heappop(self._deadlines)
            if self.remove(work):
                expired.append(work)
        return expired

    def take_all(self) -> list[W]:
        """Drop everything."""
        works = [work for queue in self._queues.values() for work in queue]
        self._queues.clear()
        self._deadlines.clear()
        self.count = 0
        return works

    def next_batch(self, now: float, *, is_urgent: bool = False) -> list[W] | float:
        """The batch to start now, or the time to ask again: infinite if nothing waits.

        `is_urgent`: wait for no other requests. Expired work must have been taken before.
        """
        chosen: tuple[int, float] | None = None
        works: list[W] = []
        soonest = math.inf
        is_urgent = is_urgent or self.joining.kept == JoinRule.ALONE
        for key, queue in self._queues.items():
            head = queue[0]
            if chosen is not None and chosen <= (head.priority, head.arrival):
                continue
            candidates = self._candidates(queue)
            count, rows, is_complete, deadline = self._measure(candidates)
            if not (is_urgent or is_complete):
                start = self.delay.start_time(rows, head.arrival, now)
                # waiting for others must not let a request expire, nor take the time of its run
                start = min(start, (head.arrival + deadline) / 2)
                if start > now:
                    soonest = min(soonest, start)
                    continue
            chosen, chosen_key = (head.priority, head.arrival), key
            works = candidates[:count]
        if chosen is None:
            return soonest
        queue = self._queues[chosen_key]
        self.rule_of_last = self.joining.take() if len(queue) > 1 else None
        if works[-1] is queue[len(works) - 1]:
            return self._take(chosen_key, queue, 0, len(works))
        for work in works:
            self.remove(work)
        return works

    def _candidates(self, queue: list[W]) -> list[W]:
        """The works of a queue that its next batch may have, its first one among them."""
        rule = self.joining.next_rule
        if rule == JoinRule.ALL or len(queue) == 1:
            return queue
        head = queue[0]
        if rule == JoinRule.ALONE:
            return [head]
        return [
            work
            for work in queue
            if work.lengths == head.lengths and work.priority == head.priority
        ]

    def _measure(self, queue: list[W]) -> tuple[int, int, bool, float]:
        """What of a queue goes into one batch: works, rows, no reason to wait, first deadline."""
        limit, preferred = self.policy.max_rows, self.policy.preferred
        rows = count = 0
        deadline = math.inf
        best: tuple[int, int] | None = None
        for work in queue:
            if count and rows + work.rows > limit:
                return (*(best or (count, rows)), True, deadline)
            count, rows = count + 1, rows + work.rows
            if work.deadline < deadline:
                deadline = work.deadline
            if rows in preferred:
                best = (count, rows)
            if rows >= limit:
                return (*(best or (count, rows)), True, deadline)
        return (*(best or (count, rows)), best is not None, deadline)

    def _forget_deadlines(self) -> None:
        """Remove the work that left: it would keep its tensors in memory until its deadline."""
        waiting = {id(work) for queue in self._queues.values() for work in queue}
        self._deadlines = [entry for entry in self._deadlines if id(entry[2]) in waiting]
        heapq.heapify(self._deadlines)

    def _take(self, key: Hashable, queue: list[W], start: int, stop: int) -> list[W]:
        taken = queue[start:stop]
        del queue[start:stop]
        if not queue:
            del self._queues[key]
        self.count -= len(taken)
        if not self.count:
            self._deadlines.clear()
        return taken
