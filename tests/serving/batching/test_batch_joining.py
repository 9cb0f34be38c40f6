"""batch_joining: requests are joined where that makes them faster, in simulated time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from onward.serving.batching.batch_delay import LearnedDelay
from onward.serving.batching.batch_joining import FixedJoining, JoinRule, LearnedJoining, RuleRuns
from onward.serving.batching.scheduler import BatchPolicy, BatchScheduler

ALONE, EQUAL, ALL = JoinRule
Latency = Callable[[int], float]  # of the elements of a batch, padding included


@dataclass(eq=False)
class Job:
    lengths: int
    arrival: float
    client: int
    key: str = "k"
    rows: int = 1
    priority: int = 0
    deadline: float = math.inf


class Simulation:
    """Clients that ask again once they are answered, and one instance that runs their batches."""

    def __init__(
        self,
        joining: LearnedJoining | FixedJoining,
        latency: Latency,
        *,
        clients: int = 8,
        lengths: Sequence[int] = (1,),
        noise: float = 0.0,
    ) -> None:
        self.joining, self.latency = joining, latency
        self.delay = LearnedDelay()
        policy = BatchPolicy(32)
        self.scheduler: BatchScheduler[Job] = BatchScheduler(policy, self.delay, joining)
        self.random = random.Random(0)
        self.lengths, self.noise = lengths, noise
        self.now, self.changes = 0.0, 0
        self.batches: list[list[Job]] = []
        self.waits: list[float] = []  # while the instance was idle and requests waited
        self.arrivals = [(0.0001 * client, client) for client in range(clients)]

    def run(self, batches: int) -> list[list[Job]]:
        """The next batches."""
        first = len(self.batches)
        while len(self.batches) < first + batches:
            self._admit()
            found = self.scheduler.next_batch(self.now)
            if not isinstance(found, list):
                arrival = self.arrivals[0][0] if self.arrivals else math.inf
                if self.scheduler.count:
                    self.waits.append(min(found, arrival) - self.now)
                self.now = max(self.now, min(found, arrival))
                continue
            self._run_batch(found, self.scheduler.rule_of_last)
        return self.batches[first:]

    def _run_batch(self, works: list[Job], rule: JoinRule | None) -> None:
        padded = len(works) * max(work.lengths for work in works)
        seconds = self.latency(padded) * (1 + self.noise * self.random.uniform(-1, 1))
        self.now += seconds
        self.batches.append(works)
        self.delay.observe_run(len(works), len(works), seconds, self.now)
        elements = sum(work.lengths for work in works)
        if rule is not None and self.joining.observe(rule, elements, seconds):
            self.changes += 1
        for work in works:
            heapq.heappush(self.arrivals, (self.now + 0.0001, work.client))

    def _admit(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now:
            at, client = heapq.heappop(self.arrivals)
            self.delay.observe_arrival(at)
            self.scheduler.add(Job(self.random.choice(self.lengths), at, client))


def line(fixed: float, per_element: float) -> Latency:
    return lambda elements: fixed + per_element * elements


def mean_size(batches: list[list[Job]]) -> float:
    return sum(map(len, batches)) / len(batches)


def unpadded() -> LearnedJoining:
    return LearnedJoining((ALONE, ALL))


def padded() -> LearnedJoining:
    return LearnedJoining((ALONE, EQUAL, ALL))


def test_a_model_with_a_large_fixed_part_keeps_its_batches() -> None:
    simulation = Simulation(unpadded(), line(0.02, 0.0005))
    batches = simulation.run(3000)
    assert (simulation.joining.kept, simulation.changes) == (ALL, 0)
    assert mean_size(batches) > 7  # trials cost few batches


def test_a_model_without_a_fixed_part_runs_requests_as_they_come() -> None:
    simulation = Simulation(unpadded(), line(0.0, 0.02))
    simulation.run(200)
    assert simulation.joining.kept == ALONE
    simulation.waits.clear()
    batches = simulation.run(3000)
    assert simulation.changes == 1
    assert mean_size(batches) < 1.3  # some are of trials
    assert not simulation.waits
    order = [work.arrival for work in itertools.chain(*batches)]
    assert order == sorted(order)


def test_requests_of_different_lengths_are_not_padded_in_vain() -> None:
    simulation = Simulation(padded(), line(0.0002, 0.0001), lengths=range(5, 129))
    simulation.run(300)
    assert simulation.joining.kept == ALONE
    batches = simulation.run(3000)
    assert mean_size(batches) < 1.2
    assert simulation.changes == 1


def test_equal_lengths_are_joined_where_padding_costs_more_than_it_saves() -> None:
    simulation = Simulation(padded(), line(0.005, 0.001), clients=24, lengths=(1, 64))
    simulation.run(500)
    assert simulation.joining.kept == EQUAL
    batches = simulation.run(200)
    short = [batch for batch in batches if batch[0].lengths == 1]
    assert any(len(batch) > 1 for batch in short)
    same = [batch for batch in batches if len({work.lengths for work in batch}) == 1]
    assert len(same) >= 0.6 * len(batches)  # the others are of a trial


def test_different_lengths_are_joined_where_that_pays() -> None:
    simulation = Simulation(padded(), line(0.1, 0.0001), lengths=range(5, 129))
    batches = simulation.run(2000)
    assert (simulation.joining.kept, simulation.changes) == (ALL, 0)
    assert mean_size(batches) > 6


def test_a_change_of_the_model_is_followed() -> None:
    simulation = Simulation(unpadded(), line(0.0, 0.02))
    simulation.run(2000)
    assert simulation.joining.kept == ALONE
    simulation.latency = line(0.02, 0.0005)
    simulation.run(1500)
    assert simulation.joining.kept == ALL
    simulation.latency = line(0.0, 0.02)
    simulation.run(1500)
    assert simulation.joining.kept == ALONE
    assert simulation.changes == 3


@pytest.mark.parametrize(
    ("fixed", "per_row", "kept"), [(0.0, 0.02, ALONE), (0.02, 0.0005, ALL), (0.002, 0.02, None)]
)
def test_noise_hardly_changes_the_rule(fixed: float, per_row: float, kept: JoinRule | None) -> None:
    simulation = Simulation(unpadded(), line(fixed, per_row), noise=0.5)
    simulation.run(5000)
    assert simulation.changes <= 3
    assert kept in (None, simulation.joining.kept)


def test_a_lone_client_starts_no_trial() -> None:
    simulation = Simulation(unpadded(), line(0.0, 0.02), clients=1)
    simulation.run(500)
    assert (simulation.joining.kept, simulation.joining.take()) == (ALL, ALL)


def test_a_trial_whose_runs_fail_ends() -> None:
    joining = unpadded()
    rules = [joining.take() for _ in range(350)]
    last_alone = 349 - rules[::-1].index(ALONE)
    assert rules[:32] == [ALL] * 32
    assert 32 < last_alone < 300
    assert joining.kept == ALL


def test_a_run_that_was_interrupted_counts_as_eight() -> None:
    runs = RuleRuns()
    for _ in range(6):
        runs.add(10, 1.0)
    runs.add(10, 1000.0)
    assert runs.per_element == pytest.approx((6 * 1.0 + 8.0) / 70)


def test_fixed_joining_joins_all() -> None:
    joining = FixedJoining()
    assert (joining.kept, joining.next_rule, joining.take()) == (ALL, ALL, ALL)
    assert not joining.observe(ALL, 1, 1.0)
