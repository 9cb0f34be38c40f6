"""plan_layouts: the best layout first, settings that fit, and hints where nothing does."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward import losses, optimizers
from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Names, bucket_names
from onward.distributed.planner.layout_estimate import Devices, Estimator
from onward.distributed.planner.plan_layouts import (
    candidate_layouts,
    micro_batches,
    plan_layouts,
)
from onward.distributed.planner.process_memory import bytes_per_process
from onward.distributed.planner.step_collectives import traffic
from onward.distributed.planner.training_costs import TrainingCosts, measure_costs
from onward.distributed.simulation.cluster import Link
from onward.errors import OptionError
from onward.programs.buckets import split_updates
from onward.programs.build import build_program
from onward.programs.program import Program
from tests.distributed.training_cases import classifier

KIB = 1 << 10


def small_buckets(program: Program, limit: int) -> Sequence[Names]:
    return bucket_names(program, 300)


@pytest.fixture(scope="module")
def costs() -> TrainingCosts:
    program = build_program(
        classifier(batch_norm=True), losses.CrossEntropy(output="scores"), optimizers.AdamW()
    )
    return measure_costs(program)


def test_layouts_of_nodes() -> None:
    assert [name for name, _ in candidate_layouts(Devices(count=1))] == ["one device"]
    found = dict(candidate_layouts(Devices(count=8, nodes=2)))
    assert found["data parallel"] == Parallel(data=8)
    assert found["ZeRO 2"] == Parallel(data=1, shard=8, zero=2)
    assert found["hybrid ZeRO 3"] == Parallel(data=2, shard=4, zero=3)
    assert not [name for name, _ in candidate_layouts(Devices(count=4, nodes=4)) if "hyb" in name]
    assert all(parallel.over(8) == parallel for parallel in found.values())


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 64).map(lambda n: n * KIB), st.sampled_from([(4, 1), (8, 2), (6, 3)]))
def test_the_best_is_first(costs: TrainingCosts, memory: int, places: tuple[int, int]) -> None:
    count, nodes = places
    plan = plan_layouts(costs, Devices(count=count, nodes=nodes, memory=memory), 64)
    fitting = [each for each in plan.estimates if each.fits]
    failing = [each for each in plan.estimates if not each.fits]
    assert plan.estimates == (*fitting, *failing)
    seconds = [each.step.seconds for each in fitting]
    missing = [each.missing for each in failing]
    assert seconds == sorted(seconds) and missing == sorted(missing)
    assert plan.best == (fitting[0] if fitting else None)
    assert all(each.memory.total + 0 <= memory for each in fitting)
    assert all(each.memory.total - each.missing == memory for each in failing)
    assert bool(plan.hints) == (not fitting)
    for each in plan.estimates:
        assert each.accumulate * each.rows >= math.ceil(64 / count)


def test_figures_are_those_of_the_pure_functions(costs: TrainingCosts) -> None:
    plan = plan_layouts(costs, Devices(count=4), 64)
    assert len(plan.estimates) == 4
    for each in plan.estimates:
        layout = split_updates(costs.program, int(each.parallel.bucket)).program.layout
        activations = costs.activations(each.rows)
        assert each.memory == bytes_per_process(
            layout, each.parallel, accumulate=each.accumulate, activations=activations
        )
        assert each.sent == traffic(layout, each.parallel, accumulate=each.accumulate)


def test_ample_memory_needs_no_micro_batches(costs: TrainingCosts) -> None:
    plan = plan_layouts(costs, Devices(count=4), 64)
    assert all(each.fits and each.accumulate == 1 for each in plan.estimates)
    assert not any(each.parallel.offload for each in plan.estimates)
    assert plan.best is not None and plan.best.name == "data parallel"


def test_less_memory_takes_micro_batches_then_offload(costs: TrainingCosts) -> None:
    estimator = Estimator(costs, Devices(count=4), small_buckets)
    parallel = Parallel(data=1, shard=4, zero=1)
    needs = {rows: estimator.memory(parallel, 16 // rows, rows).total for rows in (16, 8, 4, 2, 1)}
    whole = needs[16]

    def zero_1(memory: int) -> tuple[int, int, bool]:
        plan = plan_layouts(costs, Devices(count=4, memory=memory), 64, grouping=small_buckets)
        [found] = [each for each in plan.estimates if each.name == "ZeRO 1"]
        return found.accumulate, found.rows, found.parallel.offload

    assert zero_1(whole) == (1, 16, False)
    assert zero_1(whole - 1)[0] > 1
    assert zero_1(min(needs.values()) - 1)[2]  # no micro-batch fits: the state must leave


def test_where_nothing_fits(costs: TrainingCosts) -> None:
    plan = plan_layouts(costs, Devices(count=2, memory=2 * KIB), 8)
    assert plan.best is None
    assert "nothing fits" in plan.hints[0] and "more on each device" in plan.hints[0]
    assert "more devices do not help" in plan.hints[-1]
    one = plan_layouts(costs, Devices(count=1, memory=6 * KIB), 1, grouping=small_buckets)
    assert one.best is None and re.search(r"with ZeRO 3, \d+ such devices would be", one.hints[-1])


def test_micro_batches_keep_the_batch(costs: TrainingCosts) -> None:
    assert micro_batches(costs, Devices(count=4), 40) == [(1, 10), (2, 5), (4, 3), (8, 2), (10, 1)]
    assert micro_batches(costs, Devices(count=4), 4) == [(1, 1)]
    with pytest.raises(OptionError, match="a batch of 3 rows is too small for 4 devices"):
        micro_batches(costs, Devices(count=4), 3)
    fixed = replace(costs, fixed=5)
    assert micro_batches(fixed, Devices(count=4), 40) == [(2, 5)]
    with pytest.raises(OptionError, match=r"multiple of 20 rows, not 50\nchoose 60"):
        micro_batches(fixed, Devices(count=4), 50)


def test_slow_links_change_the_order(costs: TrainingCosts) -> None:
    """On slow links ZeRO 3, which sends up to half as much again, is the slowest."""
    slow = Devices(count=4, inside=Link(bandwidth=1e6))
    plan = plan_layouts(costs, slow, 64, grouping=small_buckets)
    assert plan.estimates[-1].name == "ZeRO 3"
    assert plan.estimates[-1].step.seconds > 1.1 * plan.estimates[0].step.seconds


def test_devices_are_spread_evenly() -> None:
    with pytest.raises(OptionError, match="8 devices cannot be spread evenly over 3 nodes"):
        Devices(count=8, nodes=3)
    with pytest.raises(OptionError, match=r"Devices.flops must be a number above 0"):
        Devices(count=8, flops=0)
