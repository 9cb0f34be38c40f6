"""Tasks on resources: each runs as soon as it can."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from onward.distributed.simulation.task_timeline import (
    Interval,
    Task,
    covered_seconds,
    overlap_seconds,
    run_tasks,
)


def times(*tasks: Task) -> list[tuple[float, float]]:
    return [(each.start, each.end) for each in run_tasks(tasks)]


def test_tasks_wait_for_others_and_for_their_resource() -> None:
    found = times(
        Task("forward", "compute", 2),
        Task("backward", "compute", 3, (0,)),
        Task("reduce", "link", 4, (0,)),
        Task("reduce more", "link", 1, (1,)),
        Task("update", "compute", 1, (2, 3)),
    )
    assert found == [(0, 2), (2, 5), (2, 6), (6, 7), (7, 8)]


def test_what_is_ready_first_runs_first() -> None:
    found = times(
        Task("late", "link", 1, (2,)),
        Task("early", "link", 5, (3,)),
        Task("long", "a", 3),
        Task("short", "b", 1),
    )
    assert found[1] == (1, 6) and found[0] == (6, 7)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.floats(0, 10), st.sets(st.integers(0, 30), max_size=3)
        ),
        max_size=20,
    )
)
def test_no_two_tasks_share_a_resource(drawn: list[tuple[str, float, set[int]]]) -> None:
    tasks = [
        Task(str(i), resource, seconds, tuple(j for j in after if j < i))
        for i, (resource, seconds, after) in enumerate(drawn)
    ]
    found = run_tasks(tasks)
    for i, each in enumerate(found):
        assert each.task is tasks[i] and each.end == each.start + each.task.seconds
        assert all(found[j].end <= each.start for j in each.task.after)
    for name in "abc":
        own = sorted((e for e in found if e.task.resource == name), key=lambda e: (e.start, e.end))
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
        busy = sum(each.task.seconds for each in own)
        assert abs(covered_seconds(own) - busy) < 1e-6


def test_overlap() -> None:
    def spans(*pairs: tuple[float, float]) -> list[Interval]:
        return [Interval(Task("", "", b - a), a, b) for a, b in pairs]

    assert covered_seconds(spans((0, 2), (1, 3), (5, 6))) == 4
    assert overlap_seconds(spans((0, 2), (4, 6)), spans((1, 5))) == 2
    assert overlap_seconds(spans((0, 1)), spans((2, 3))) == 0
