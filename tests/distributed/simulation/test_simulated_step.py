"""Simulated steps: limits that are known, overlap, stragglers, links of nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.planner.step_collectives import Collective
from onward.distributed.simulation.cluster import Cluster, Link, collective_seconds, link_of
from onward.distributed.simulation.scaling_curve import RANKS, scaling_curve
from onward.distributed.simulation.simulated_step import StepWork, simulate_step
from onward.errors import OptionError

MIB = 1 << 20


def work(buckets: int = 4, nbytes: int = MIB, **more: int) -> StepWork:
    """Segments of 10 and 20 ms."""
    return StepWork(
        buckets=tuple(Bucket(names=(), nbytes=nbytes, slots=2) for _ in range(buckets)),
        forward=(0.01,) * buckets,
        backward=(0.02,) * buckets,
        **more,
    )


LAYOUTS = {
    "data parallel": Parallel(),
    "ZeRO 1": Parallel(shard=4, zero=1),
    "ZeRO 2": Parallel(shard=4, zero=2),
    "ZeRO 3": Parallel(shard=4),
}


@pytest.mark.parametrize("name", LAYOUTS)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 8))
def test_links_without_cost_give_efficiency_1(
    name: str, buckets: int, accumulate: int, power: int
) -> None:
    parallel = LAYOUTS[name].over(4 << power)
    step = simulate_step(work(buckets, accumulate=accumulate), parallel, Cluster())
    assert step.efficiency == pytest.approx(1.0) and step.communication == 0


@given(st.integers(1, 5), st.integers(1, 3), st.floats(0, 1), st.floats(1, 1e12))
def test_one_process_takes_its_compute(
    buckets: int, accumulate: int, latency: float, bandwidth: float
) -> None:
    given_work = work(buckets, accumulate=accumulate)
    cluster = Cluster(inside=Link(latency=latency, bandwidth=bandwidth))
    step = simulate_step(given_work, Parallel(data=1), cluster)
    assert step.seconds == pytest.approx(given_work.seconds) and step.hidden == 1.0


def test_the_last_bucket_is_not_hidden() -> None:
    """Each all_reduce takes 10 ms: three are hidden behind segments of 20 ms, one is not."""
    link = Link(bandwidth=MIB / 0.01)
    step = simulate_step(work(), Parallel(data=2), Cluster(inside=link))
    assert step.seconds == pytest.approx(0.12 + 0.01, rel=1e-3)
    assert step.hidden == pytest.approx(0.75, rel=1e-3)


def test_a_slow_link_is_the_bound() -> None:
    """Each all_reduce takes 100 ms: the first begins after 40 + 20 ms, and none waits after it."""
    step = simulate_step(work(), Parallel(data=2), Cluster(inside=Link(bandwidth=MIB / 0.1)))
    assert step.seconds == pytest.approx(0.06 + 0.4, rel=1e-3)


def test_without_overlap_times_add_up() -> None:
    cluster = Cluster(inside=Link(bandwidth=MIB / 0.01), overlap=False)
    step = simulate_step(work(), Parallel(data=2), cluster)
    assert step.seconds == pytest.approx(0.12 + 0.04, rel=1e-3)
    assert step.hidden == pytest.approx(0, abs=1e-9)


def test_zero_3_gathers_one_segment_ahead() -> None:
    """A gather takes 5 ms, less than any segment: only the first one is waited for."""
    cluster = Cluster(inside=Link(bandwidth=MIB / 2 / 0.005))
    step = simulate_step(work(), Parallel(data=1, shard=2), cluster)
    gathers = [each for each in step.timeline if each.task.name.startswith("all_gather")]
    segments = [each for each in step.timeline if "ward" in each.task.name]
    assert (len(gathers), len(segments)) == (6, 8)  # two are held from forward to backward
    assert step.seconds == pytest.approx(0.005 + 0.12 + 0.005, rel=1e-2)
    for i, gather in enumerate(gathers[2:4]):  # two are held: the one before the last is freed
        assert gather.start >= segments[i].end - 1e-9


def test_accumulation_reduces_once_unless_gradients_are_sharded() -> None:
    cluster = Cluster(inside=Link(bandwidth=MIB / 0.01))
    once = simulate_step(work(accumulate=1), Parallel(data=2), cluster)
    thrice = simulate_step(work(accumulate=3), Parallel(data=2), cluster)
    assert thrice.communication == pytest.approx(once.communication, rel=1e-2)
    each = simulate_step(work(accumulate=3), Parallel(data=1, shard=2, zero=2), cluster)
    assert each.communication > 1.8 * thrice.communication


def test_stragglers_slow_down_more_processes() -> None:
    few, many = (
        simulate_step(work(), Parallel(data=n), Cluster(), spread=0.1, seed=3) for n in (2, 256)
    )
    assert 0.12 < few.seconds < many.seconds < 0.12 * 1.5
    assert few == simulate_step(work(), Parallel(data=2), Cluster(), spread=0.1, seed=3)
    assert few != simulate_step(work(), Parallel(data=2), Cluster(), spread=0.1, seed=4)


def test_curve_falls_to_1024_processes() -> None:
    slow = Link(latency=1e-4, bandwidth=1e9)
    points = scaling_curve(work(), lambda n: Parallel(), Cluster(inside=slow))
    assert [each.ranks for each in points] == list(RANKS) and RANKS[-1] == 1024
    efficiencies = [each.efficiency for each in points]
    assert efficiencies[0] == pytest.approx(1.0)
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiencies[-1] < 0.5


# -- links ----------------------------------------------------------------------------------------

INSIDE, BETWEEN = Link(latency=1e-6, bandwidth=100e9), Link(latency=1e-5, bandwidth=10e9)
NODES = Cluster(per_node=4, inside=INSIDE, between=BETWEEN)


def reduce_of(nbytes: int, group: str = "whole", kind: str = "all_reduce") -> Collective:
    return Collective(kind=kind, group=group, nbytes=nbytes, phase="reduce")  # type: ignore[arg-type]


def test_a_ring_by_hand() -> None:
    parallel = Parallel(data=4)
    seconds = collective_seconds(reduce_of(8000), parallel, NODES)
    assert seconds == pytest.approx(6 * 1e-6 + 2 * 8000 * 3 / 4 / 100e9)
    gather = collective_seconds(reduce_of(8000, kind="all_gather"), parallel, NODES)
    assert gather == pytest.approx(seconds / 2)
    assert link_of(reduce_of(8000), parallel, NODES) == "inside"


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_link() -> None:
    parallel = Parallel(data=8)
    assert link_of(reduce_of(8000), parallel, NODES) == "between"
    seconds = collective_seconds(reduce_of(8000), parallel, NODES)
    assert seconds == pytest.approx(14 * 1e-5 + 2 * 8000 * 7 / 8 / 10e9)


def test_hierarchical_collectives_have_fewer_messages_between_nodes() -> None:
    parallel, nested = Parallel(data=8), replace(NODES, algorithm="hierarchical")
    seconds = collective_seconds(reduce_of(8000), parallel, nested)
    latency = 2 * (3 * 1e-6 + 1 * 1e-5)
    assert seconds == pytest.approx(latency + max(2 * 6000 / 100e9, 2 * 4000 / 10e9))


def test_equal_shards_share_the_link_of_their_node() -> None:
    """Hybrid: 4 groups of copies leave each node at once; all together send the whole bucket."""
    hybrid = Parallel(data=2, shard=4)
    assert link_of(reduce_of(8000, "shards"), hybrid, NODES) == "inside"
    assert link_of(reduce_of(2000, "copies"), hybrid, NODES) == "between"
    seconds = collective_seconds(reduce_of(2000, "copies"), hybrid, NODES)
    assert seconds == pytest.approx(2 * 1e-5 + 4 * 2 * 2000 / 2 / 10e9)


@given(st.integers(2, 1024), st.integers(1, 10**9), st.sampled_from(["ring", "hierarchical"]))
def test_more_bytes_never_take_less_time(size: int, nbytes: int, algorithm: str) -> None:
    cluster = replace(NODES, algorithm=algorithm)
    small, large = (
        collective_seconds(reduce_of(each), Parallel(data=size), cluster)
        for each in (nbytes, 2 * nbytes)
    )
    assert 0 < small <= large < 2.001 * small


def test_settings_are_checked() -> None:
    with pytest.raises(OptionError, match=r"Link.bandwidth must be a number above 0"):
        Link(bandwidth=0)
    with pytest.raises(OptionError, match=r"Link.latency must be a number, at least 0"):
        Link(latency=-1)
    with pytest.raises(OptionError, match="each bucket needs the seconds"):
        StepWork(buckets=(), forward=(), backward=())
    assert Link().bandwidth == math.inf
