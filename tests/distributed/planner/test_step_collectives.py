"""traffic: the bytes that each process sends in a step, by hand, replayed, and in a real run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.distributed.compression.half_reduction import HalfPrecision
from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.planner.step_collectives import count_sent, step_collectives, traffic
from onward.errors import OptionError
from tests.distributed.planner.planned_layouts import make_layout

LAYOUT = make_layout({"w": (10, 10), "b": (3,)}, {"v": (16,)})  # 512 and 64 bytes
NUMBERS = {n: 2 * (2 * 16 * (n - 1) // n) for n in (2, 4, 8)}

CASES = {
    "one process": (Parallel(data=1), 1, {}),
    "data parallel": (
        Parallel(data=4), 1, {"all_reduce": 2 * 512 * 3 // 4 + 2 * 64 * 3 // 4 + NUMBERS[4]},
    ),
    "accumulation": (
        Parallel(data=4), 2, {"all_reduce": 2 * 512 * 3 // 4 + 2 * 64 * 3 // 4 + 2 * NUMBERS[4]},
    ),
    "ZeRO 1": (
        Parallel(data=1, shard=2, zero=1),
        3,
        {
            "reduce_scatter": 512 // 2 + 128 // 2,
            "all_gather": 512 // 2 + 128 // 2,
            "all_reduce": 3 * NUMBERS[2] + 16,
        },
    ),
    "ZeRO 2": (
        Parallel(data=1, shard=2, zero=2),
        3,
        {
            "reduce_scatter": 3 * (512 // 2 + 128 // 2),
            "all_gather": 512 // 2 + 128 // 2,
            "all_reduce": 3 * NUMBERS[2] + 16,
        },
    ),
    "ZeRO 3": (
        Parallel(data=1, shard=2),
        3,
        {
            "reduce_scatter": 3 * (512 // 2 + 128 // 2),
            # of two buckets, both are held from forward to backward, the second to the next forward
            "all_gather": 3 * 512 // 2 + 128 // 2,
            "all_reduce": 3 * NUMBERS[2] + 16,
        },
    ),
    "hybrid": (
        Parallel(data=4, shard=2, zero=1),
        1,
        {
            "reduce_scatter": 512 // 2 + 128 // 2,
            "all_gather": 512 // 2 + 128 // 2,
            "all_reduce": 2 * 256 * 3 // 4 + 2 * 64 * 3 // 4 + NUMBERS[8] + 2 * 16 * 7 // 8,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bytes_by_hand(case: str) -> None:
    parallel, accumulate, expected = CASES[case]
    assert traffic(LAYOUT, parallel, accumulate=accumulate) == expected


class CountingGroup:
    """Counts as Communicator does, without processes."""

    def __init__(self, size: int, sent: Counter[str]) -> None:
        self.size, self.sent = size, sent

    def call(self, kind: str, whole: int) -> None:
        if self.size > 1:
            factor = 2 if kind == "all_reduce" else 1
            self.sent[kind] += factor * whole * (self.size - 1) // self.size


def replay(buckets: list[Bucket], parallel: Parallel, accumulate: int) -> Counter[str]:
    """The calls of a step as the design describes them."""
    assert parallel.data is not None
    sent: Counter[str] = Counter()
    n, sharded = parallel.shard, parallel.shard > 1
    whole, shards, copies = (
        CountingGroup(size, sent) for size in (parallel.data * n, n, parallel.data)
    )
    segments = [*reversed(range(len(buckets))), *range(len(buckets))]
    held: set[int] = set()
    for micro in range(accumulate):
        whole.call("all_reduce", 16)
        for at, i in enumerate(segments if sharded and parallel.zero == 3 else ()):
            following = [later for later in segments[at + 1 :] if later != i][:1]
            for gathered in {i, *following} - held:
                shards.call("all_gather", buckets[gathered].padded(n))
            held = {i, *following}
        for bucket in buckets:
            if sharded and (parallel.zero > 1 or micro == accumulate - 1):
                shards.call("reduce_scatter", bucket.padded(n))
        whole.call("all_reduce", 16)
    for bucket in buckets:
        copies.call("all_reduce", bucket.padded(n) // n)
    if sharded:
        whole.call("all_reduce", 16)
    if sharded and parallel.zero < 3:
        for bucket in buckets:
            shards.call("all_gather", bucket.padded(n))
    return +sent


BUCKETS = st.lists(
    st.builds(lambda lines: Bucket(names=(), nbytes=64 * lines, slots=1), st.integers(1, 10**6)),
    min_size=1,
    max_size=5,
)


@given(BUCKETS, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 3]), st.integers(1, 3))
def test_bytes_equal_replayed_calls(
    buckets: list[Bucket], data: int, shard: int, zero: int, accumulate: int
) -> None:
    parallel = replace(Parallel(data=data, shard=shard), zero=zero)
    found = count_sent(step_collectives(buckets, parallel, accumulate), parallel)
    assert found == replay(buckets, parallel, accumulate)


def test_gathers_as_an_engine_counts_them() -> None:
    parallel = Parallel(data=1, shard=2)
    found = traffic(LAYOUT, parallel, accumulate=1, plan=[(1,), (0,), (1,), (0,)])
    assert found["all_gather"] == 2 * (512 // 2 + 128 // 2)
    assert traffic(LAYOUT, parallel, accumulate=2, plan=[(0, 1)])["all_gather"] == 512 // 2 + 64
    planned = traffic(LAYOUT, parallel, accumulate=1)
    assert found["reduce_scatter"] == planned["reduce_scatter"]


def test_a_layout_needs_the_number_of_copies() -> None:
    with pytest.raises(OptionError, match="number of copies of the model, is not set"):
        traffic(LAYOUT, Parallel())
    assert traffic(LAYOUT, Parallel().over(4)) == CASES["data parallel"][2]


def test_compression_is_not_planned() -> None:
    compressed = Parallel(data=2, compression=HalfPrecision())
    with pytest.raises(OptionError, match="compressed gradients and of local steps"):
        traffic(LAYOUT, compressed)
