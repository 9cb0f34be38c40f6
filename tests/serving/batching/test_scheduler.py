"""scheduler: batches by size, delay, priority and compatibility; nothing is lost or reordered."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from onward.serving.batching.batch_delay import FixedDelay
from onward.serving.batching.batch_joining import JoinRule, LearnedJoining
from onward.serving.batching.scheduler import BatchPolicy, BatchScheduler


@dataclass(eq=False)
class Job:
    name: str
    key: str = "k"
    rows: int = 1
    priority: int = 0
    arrival: float = 0.0
    deadline: float = math.inf
    lengths: int = 0


def make(
    max_rows: int = 4,
    delay: float = 0.0,
    preferred: tuple[int, ...] = (),
    max_waiting: int = 1024,
) -> BatchScheduler[Job]:
    return BatchScheduler(BatchPolicy(max_rows, preferred, max_waiting), FixedDelay(delay))


def names(found: list[Job] | float) -> str:
    assert isinstance(found, list)
    return "".join(job.name for job in found)


def test_waiting_work_forms_one_batch() -> None:
    scheduler = make()
    for name in "abc":
        assert scheduler.add(Job(name))
    assert len(scheduler) == 3
    assert names(scheduler.next_batch(0.0)) == "abc"
    assert scheduler.next_batch(0.0) == math.inf
    assert len(scheduler) == 0


def test_a_batch_has_at_most_so_many_rows() -> None:
    scheduler = make(max_rows=4)
    for name, rows in zip("abcd", (2, 1, 2, 1)):
        scheduler.add(Job(name, rows=rows))
    assert names(scheduler.next_batch(0.0)) == "ab"  # d would fit, but would overtake c
    assert names(scheduler.next_batch(0.0)) == "cd"


def test_work_with_more_rows_than_a_batch_runs_alone() -> None:
    scheduler = make(max_rows=4)
    for name, rows in zip("abc", (1, 9, 1)):
        scheduler.add(Job(name, rows=rows))
    assert [names(scheduler.next_batch(0.0)) for _ in range(3)] == ["a", "b", "c"]


def test_a_batch_waits_until_its_delay_is_over() -> None:
    scheduler = make(delay=0.5)
    scheduler.add(Job("a", arrival=1.0))
    scheduler.add(Job("b", arrival=1.2))
    assert scheduler.next_batch(1.2) == 1.5
    assert names(scheduler.next_batch(1.5)) == "ab"


def test_a_batch_waits_at_most_half_of_the_time_that_its_requests_have() -> None:
    scheduler = make(delay=0.5)
    scheduler.add(Job("a", arrival=1.0))
    scheduler.add(Job("b", arrival=1.1, deadline=1.3))
    assert scheduler.next_batch(1.1) == 1.15
    assert names(scheduler.next_batch(1.15)) == "ab"
    scheduler.add(Job("c", arrival=2.0, deadline=9.0))
    assert scheduler.next_batch(2.0) == 2.5


def test_a_full_batch_does_not_wait() -> None:
    scheduler = make(max_rows=2, delay=0.5)
    for name in "abc":
        scheduler.add(Job(name))
    assert names(scheduler.next_batch(0.0)) == "ab"
    assert scheduler.next_batch(0.0) == 0.5


def test_a_full_batch_overtakes_another_that_waits() -> None:
    scheduler = make(max_rows=2, delay=0.5)
    for name, key in zip("abc", "pqq"):
        scheduler.add(Job(name, key))
    assert names(scheduler.next_batch(0.0)) == "bc"


def test_an_urgent_batch_does_not_wait() -> None:
    scheduler = make(delay=0.5)
    scheduler.add(Job("a"))
    assert names(scheduler.next_batch(0.0, is_urgent=True)) == "a"


def test_preferred_sizes_are_sent_without_waiting() -> None:
    scheduler = make(max_rows=8, delay=0.5, preferred=(2, 4))
    scheduler.add(Job("a"))
    assert scheduler.next_batch(0.0) == 0.5
    for name in "bcdef":
        scheduler.add(Job(name))
    assert names(scheduler.next_batch(0.0)) == "abcd"
    assert names(scheduler.next_batch(0.0)) == "ef"


def test_after_the_delay_any_size_is_sent() -> None:
    scheduler = make(max_rows=8, delay=0.5, preferred=(4,))
    for name in "abc":
        scheduler.add(Job(name))
    assert scheduler.next_batch(0.1) == 0.5
    assert names(scheduler.next_batch(0.5)) == "abc"


def test_only_compatible_work_is_joined_and_the_oldest_is_first() -> None:
    scheduler = make()
    for at, (name, key) in enumerate(zip("abcd", "qpqp")):
        scheduler.add(Job(name, key, arrival=float(at)))
    assert names(scheduler.next_batch(9.0)) == "ac"
    assert names(scheduler.next_batch(9.0)) == "bd"


def test_the_most_urgent_priority_is_first() -> None:
    scheduler = make(max_rows=2)
    for name, priority in zip("abcd", (2, 2, 1, 1)):
        scheduler.add(Job(name, priority=priority))
    assert names(scheduler.next_batch(0.0)) == "cd"
    assert names(scheduler.next_batch(0.0)) == "ab"


def test_less_urgent_work_fills_a_batch_up() -> None:
    scheduler = make()
    for name, priority in zip("abc", (3, 1, 2)):
        scheduler.add(Job(name, priority=priority))
    assert names(scheduler.next_batch(0.0)) == "bca"


def test_a_full_queue_takes_no_more() -> None:
    scheduler = make(max_waiting=2)
    assert scheduler.add(Job("a"))
    assert not scheduler.is_full
    assert scheduler.add(Job("b"))
    assert scheduler.is_full
    assert not scheduler.add(Job("c"))
    assert names(scheduler.next_batch(0.0)) == "ab"


def test_expired_work_is_dropped() -> None:
    scheduler = make()
    scheduler.add(Job("a", deadline=2.0))
    scheduler.add(Job("b"))
    scheduler.add(Job("c", deadline=1.0))
    assert scheduler.next_deadline == 1.0
    assert names(scheduler.take_expired(0.9)) == ""
    assert names(scheduler.take_expired(2.0)) == "ca"
    assert scheduler.next_deadline == math.inf
    assert names(scheduler.next_batch(2.0)) == "b"


def test_removed_work_does_not_run() -> None:
    scheduler = make()
    jobs = [Job(name) for name in "abc"]
    for job in jobs:
        scheduler.add(job)
    assert scheduler.remove(jobs[1])
    assert not scheduler.remove(jobs[1])
    assert names(scheduler.next_batch(0.0)) == "ac"
    assert not scheduler.remove(jobs[0])


def test_deadlines_of_work_that_ran_are_forgotten() -> None:
    scheduler = make(max_rows=1)
    scheduler.add(Job("first", key="other", arrival=1e9, deadline=1e9))
    for number in range(1000):
        scheduler.add(Job(str(number), deadline=1e6))
        scheduler.next_batch(0.0)
    assert len(scheduler) == 1
    assert len(scheduler._deadlines) < 100  # each holds the tensors of a request


def test_take_all_empties_the_queue() -> None:
    scheduler = make()
    for name, key in zip("abc", "pqp"):
        scheduler.add(Job(name, key, deadline=1.0))
    assert sorted(names(scheduler.take_all())) == ["a", "b", "c"]
    assert len(scheduler) == 0
    assert scheduler.take_expired(9.0) == []


def make_joining(rule: JoinRule, delay: float = 0.0) -> BatchScheduler[Job]:
    joining = LearnedJoining([rule])
    return BatchScheduler(BatchPolicy(4), FixedDelay(delay), joining)


def test_work_that_is_not_joined_does_not_wait() -> None:
    scheduler = make_joining(JoinRule.ALONE, delay=0.5)
    for name in "ab":
        scheduler.add(Job(name))
    assert names(scheduler.next_batch(0.0)) == "a"
    assert scheduler.rule_of_last == JoinRule.ALONE
    assert names(scheduler.next_batch(0.0)) == "b"
    assert scheduler.rule_of_last is None  # nothing else waited


def test_equal_lengths_are_joined_and_the_oldest_is_first() -> None:
    scheduler = make_joining(JoinRule.EQUAL)
    for name, lengths in zip("abcdefg", (1, 2, 1, 2, 1, 1, 1)):
        scheduler.add(Job(name, lengths=lengths))
    assert names(scheduler.next_batch(0.0)) == "acef"
    assert names(scheduler.next_batch(0.0)) == "bd"
    assert names(scheduler.next_batch(0.0)) == "g"
    assert len(scheduler) == 0


def test_equal_lengths_of_another_priority_are_not_joined() -> None:
    scheduler = make_joining(JoinRule.EQUAL)
    for name, lengths, priority in zip("abc", (1, 2, 1), (1, 1, 2)):
        scheduler.add(Job(name, lengths=lengths, priority=priority))
    assert [names(scheduler.next_batch(0.0)) for _ in range(3)] == ["a", "b", "c"]


ACTIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from("pq"),
        st.integers(1, 5),
        st.integers(1, 2),
        st.one_of(st.just(math.inf), st.floats(0, 3)),
    ),
    st.tuples(st.just("run"), st.booleans()),
    st.tuples(st.just("pass"), st.floats(0, 1)),
    st.tuples(st.just("remove"), st.integers(0, 30)),
)


@given(
    st.lists(ACTIONS, max_size=60),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.lists(st.integers(1, 6), max_size=2),
    st.sampled_from([None, *JoinRule]),
)
def test_nothing_is_lost_repeated_or_reordered(
    actions: list[tuple[object, ...]],
    max_rows: int,
    delay: float,
    preferred: list[int],
    rule: JoinRule | None,
) -> None:
    scheduler = make(max_rows, delay, tuple(preferred), max_waiting=20)
    if rule is not None:
        scheduler.joining = LearnedJoining([rule])
    now, added, left, batches = 0.0, [], [], []
    for number, action in zip(itertools.count(), [*actions]):
        match action:
            case ("add", str(key), int(rows), int(priority), float(wait)):
                lengths = number % 2 if rule == JoinRule.EQUAL else 0
                job = Job(str(number), key, rows, priority, now, now + wait, lengths)
                if scheduler.add(job):
                    added.append(job)
                else:
                    assert len(scheduler) == 20
            case ("run", bool(is_urgent)):
                left += scheduler.take_expired(now)
                found = scheduler.next_batch(now, is_urgent=is_urgent)
                if isinstance(found, list):
                    batches.append(found)
                else:
                    assert found > now
            case ("pass", float(seconds)):
                now += seconds
            case ("remove", int(place)) if added:
                job = added[place % len(added)]
                if scheduler.remove(job):
                    left.append(job)
        assert len(scheduler) == len(added) - len(left) - sum(map(len, batches))
    now += 100
    left += scheduler.take_expired(now)
    while isinstance(found := scheduler.next_batch(now), list):
        batches.append(found)
    seen = [id(job) for job in itertools.chain(left, *batches)]
    assert sorted(seen) == sorted(map(id, added))
    for batch in batches:
        assert len({job.key for job in batch}) == 1
        assert len(batch) == 1 or sum(job.rows for job in batch) <= max_rows
    order = {id(job): place for place, job in enumerate(added)}
    for group in itertools.product("pq", (1, 2), (0, 1)):
        ran = [
            order[id(job)]
            for batch in batches
            for job in batch
            if (job.key, job.priority, job.lengths) == group
        ]
        assert ran == sorted(ran)
