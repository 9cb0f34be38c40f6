"""Memory and traffic of ZeRO: the bytes that are held and sent are those of theory, exactly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from onward.distributed.exchange import bytes_held
from onward.distributed.parallel import Parallel
from onward.distributed.sharding.gather_plan import count_gathers
from onward.programs.bucket_parts import Sharding
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part

pytestmark = pytest.mark.slow  # several processes, many times

SIZES = {2: (7, 5), 3: (4, 4, 4), 4: (3, 3, 3, 3)}
NUMBERS = 16  # bytes of the weights of a batch, of its loss, and of the norm: two float64 each
TORCH = [("TorchExecutionProvider", {"device": "cpu"})]


def train_and_count(rank: int, size: int, runs: list[tuple[Parallel, dict[str, Any]]]) -> Any:
    """For each run, what a step sends in each group, what is held after it, and the plan."""
    found = []
    for parallel, case in runs:
        feeds = [part(each, rank, SIZES[size]) for each in batches(4, 12)]
        with open_session(case, parallel=parallel) as session:
            engine: Any = session._engine
            groups, exchange = engine._groups, engine._exchange
            for each in feeds[:2]:
                session.step(each)
            before = [Counter(each.sent) for each in (groups.whole, groups.shards, groups.copies)]
            for each in feeds[2:]:
                session.step(each)
            after = [groups.whole.sent, groups.shards.sent, groups.copies.sent]
            sent = [{k: a[k] - b[k] for k in a if a[k] > b[k]} for a, b in zip(after, before)]
            plan = exchange.gathered.plan("train") if parallel.zero == 3 else []
            held = bytes_held(engine.store)
            found.append({"sent": sent, "held": held, "plan": plan, "sharding": exchange._sharding})
    return found


def ring(size: int, bytes_: int, times: int = 1) -> int:
    return times * bytes_ * (size - 1) // size


def check_held(found: dict[str, Any], zero: int, slots: int) -> None:
    sharding: Sharding = found["sharding"]
    whole = sum(parts.bytes for parts in sharding.buckets)
    own = whole // sharding.size
    assert whole % (sharding.size * 64) == 0
    elements = sum(
        int(np.prod(s)) for each in sharding.buckets for s in each.places.shapes.values()
    )
    assert whole < 4 * elements + sum(
        64 * (len(each.places.shapes) + sharding.size) for each in sharding.buckets
    )
    held = found["held"]
    assert held["parameters"] == (own if zero == 3 else whole)
    assert held["gradients"] == (whole if zero == 1 else own)
    assert held["slots"] == slots * own
    assert held["scratch"] == 0
    sizes = [parts.bytes for parts in sharding.buckets]
    most = max((sum(sizes[bucket] for bucket in wanted) for wanted in found["plan"]), default=0)
    assert held["gathered"] == most
    pairs = [sum(sizes[i : i + 2]) for i in range(len(sizes))]  # one computed, one on its way
    if zero > 1:
        assert held["temporary"] <= max(pairs) + max(sizes)  # and parts of later micro-batches
        assert held["temporary"] >= max(pairs)


@pytest.mark.parametrize("providers", [None, TORCH], ids=["onnxruntime", "torch"])
def test_bytes_held_and_sent(providers: Any) -> None:
    runs = [
        (Parallel(shard=3, zero=zero, bucket=300), {"providers": providers}) for zero in (1, 2, 3)
    ]
    for found in run_processes(train_and_count, 3, 3, runs, timeout=900):
        for (parallel, _), each in zip(runs, found):
            check_held(each, parallel.zero, slots=2)
            sizes = [parts.bytes for parts in each["sharding"].buckets]
            total = sum(sizes)
            gathers = count_gathers(each["plan"])
            gathered = sum(sizes[bucket] * times for bucket, times in gathers.items())
            assert each["sent"][1] == {
                "all_reduce": 2 * 3 * ring(3, 2 * NUMBERS),
                "reduce_scatter": ring(3, total, 2),
                "all_gather": ring(3, gathered if parallel.zero == 3 else total, 2),
            }
            if parallel.zero == 3:  # all in the forward pass; again in the backward, but the last
                assert sum(gathers.values()) < 2 * len(sizes)
                assert all(gathers[bucket] for bucket in range(len(sizes)))


def test_bytes_sent_by_accumulation_and_copies() -> None:
    accumulated = {"options": {"accumulate": 2}}
    runs = [(Parallel(data=2, shard=2, zero=zero, bucket=300), accumulated) for zero in (1, 2, 3)]
    for found in run_processes(train_and_count, 4, 4, runs, timeout=900):
        for (parallel, _), each in zip(runs, found):
            sizes = [parts.bytes for parts in each["sharding"].buckets]
            total = sum(sizes)
            times = 1 if parallel.zero == 1 else 2  # 2 micro-batches, 1 update
            gathers = count_gathers(each["plan"])
            gathered = 2 * sum(sizes[bucket] * n for bucket, n in gathers.items())
            whole, shards, copies = each["sent"]
            assert whole == {"all_reduce": ring(4, 2 * NUMBERS) * 5}  # 2 + 2 for batches, the norm
            assert shards == {
                "reduce_scatter": ring(2, total, times),
                "all_gather": ring(2, gathered if parallel.zero == 3 else total),
            }
            assert copies == {"all_reduce": ring(2, 2 * total // 2)}


def test_bytes_of_whole_tensors() -> None:
    case = {"optimizer": "lamb"}
    runs = [(Parallel(shard=2, zero=zero, bucket=300), case) for zero in (1, 2, 3)]
    ranks = run_processes(train_and_count, 2, 2, runs, timeout=900)
    for i, (parallel, _) in enumerate(runs):
        found = [each[i] for each in ranks]
        buckets = found[0]["sharding"].buckets
        whole = sum(parts.bytes for parts in buckets)
        own = [
            4 * sum(stop - start for p in buckets for start, stop in [p.ranges[rank]])
            for rank in (0, 1)
        ]
        assert sum(own) == whole
        assert max(own) <= 0.6 * whole  # tensors are not cut, but balanced
        gathers = (
            count_gathers(found[0]["plan"]) if parallel.zero == 3 else Counter(range(len(buckets)))
        )
        for rank, each in enumerate(found):
            ranges = [parts.ranges[rank] for parts in buckets]
            parts_of = [4 * (stop - start) for start, stop in ranges]
            sent = each["sent"][1]
            assert sent["reduce"] == 2 * (whole - own[rank])  # to the owners of the others
            assert sent["broadcast"] == 2 * sum(parts_of[b] * n for b, n in gathers.items())
            assert each["held"]["parameters"] == (own[rank] if parallel.zero == 3 else whole)
            assert each["held"]["gradients"] == (whole if parallel.zero == 1 else own[rank])
        total = sum(
            int(np.prod(shape))
            for p in buckets
            for s in p.update.slots.values()
            for shape in s.values()
        )
        assert sum(each["held"]["slots"] for each in found) == 4 * total
