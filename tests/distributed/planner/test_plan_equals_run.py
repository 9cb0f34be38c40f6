"""Planned bytes and memory equal those of a real run: data parallel, ZeRO 1 to 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from onward import losses
from onward.distributed.open_distributed import distributed_options
from onward.distributed.parallel import Parallel
from onward.distributed.planner.process_memory import ProcessMemory, bytes_per_process
from onward.distributed.planner.step_collectives import traffic
from onward.programs.buckets import split_updates
from onward.programs.build import build_program
from onward.programs.program import Layout
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import OPTIMIZERS, batches, classifier, open_session, part

pytestmark = pytest.mark.integration

BUCKET = 300
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"options": {"accumulate": 2}},
    "statistics": {"model": {"batch_norm": True}},
}
WHOLE = {**CASES, "separate tensors": {"optimizer": "lamb"}}
Found = tuple[dict[str, int], dict[str, int], list[tuple[int, ...]] | None]


def measure(rank: int, cases: Mapping[str, dict[str, Any]], parallel: Parallel) -> list[Found]:
    """What communicators count in the second update, what the store holds, and the plan."""
    found = []
    for case in cases.values():
        count = case.get("options", {}).get("accumulate", 1)
        feeds = [part(each, rank, (6, 6)) for each in batches(2 * count, 12)]
        with open_session(case, parallel=parallel) as session:
            training: Any = session._engine
            for each in feeds[:count]:
                session.step(each)
            before = count_all(training)
            for each in feeds[count:]:
                session.step(each)
            sent, plan = count_all(training) - before, None
            if parallel.shard > 1 and parallel.zero == 3:
                plan = list(training._exchange.gathered.plan("train"))
            found.append((dict(sent), dict(training.store.bytes_held()), plan))
    return found


def count_all(training: Any) -> Counter[str]:
    """The bytes of all groups; some of them are the same group."""
    groups = training._groups
    different = {id(each): each for each in (groups.whole, groups.shards, groups.copies)}
    return sum((Counter(each.sent) for each in different.values()), Counter())


def planned(case: Mapping[str, Any]) -> Layout:
    program = build_program(
        classifier(**case.get("model", {})),
        losses.CrossEntropy(output="scores"),
        OPTIMIZERS[case.get("optimizer", "adamw")],
        distributed_options(case.get("options")),
    )
    return split_updates(program, BUCKET).program.layout


def check_memory(held: Mapping[str, int], memory: ProcessMemory, name: str, shard: int) -> None:
    """What is kept is exact; vectors that come and go share buffers, which may be longer."""
    statistics = 6 * 64 if held.get("statistics") else 0  # the planner pads each
    assert held["parameters"] == memory.parameters - statistics, name
    assert held["slots"] == memory.optimizer, name
    assert held["gradients"] == memory.gradients, name
    temporary = held.get("gathered", 0) + held.get("temporary", 0)
    if shard == 1 and not temporary and not held.get("statistics"):
        # one graph without segments adds up gradients itself: see open_distributed
        assert memory.buffers < 0.1 * memory.total, (name, held, memory)
        return
    assert 0.8 * memory.buffers <= temporary <= 1.2 * memory.buffers, (name, held, memory)


@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(data=2),
        Parallel(data=1, shard=2, zero=1),
        Parallel(data=1, shard=2, zero=2),
        Parallel(data=1, shard=2, zero=3),
    ],
    ids=["data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3"],
)
def test_bytes_and_memory_equal_those_of_a_run(parallel: Parallel) -> None:
    cases = WHOLE if parallel.shard == 1 else CASES
    settings = replace(parallel, bucket=BUCKET)
    runs = run_processes(measure, 2, cases, settings)
    for i, (name, case) in enumerate(cases.items()):
        layout = planned(case)
        for rank in range(2):
            sent, held, plan = runs[rank][i]
            assert sent == traffic(layout, settings, plan=plan), name
            check_memory(held, bytes_per_process(layout, settings, plan=plan), name, parallel.shard)
