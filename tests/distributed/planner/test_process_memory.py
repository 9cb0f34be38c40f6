"""bytes_per_process: what each process of a layout holds, byte by byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import losses
from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket, bucket_names, measure_buckets
from onward.distributed.planner.process_memory import ProcessMemory, bytes_per_process, sum_memory
from onward.errors import OptionError
from onward.programs.buckets import split_updates
from onward.programs.build import build_program
from tests.distributed.planner.planned_layouts import make_layout
from tests.distributed.training_cases import OPTIMIZERS, classifier

# two buckets: 100 floats and 3 floats (448 + 64 bytes), and 16 floats (64 bytes)
LAYOUT = make_layout({"w": (10, 10), "b": (3,)}, {"v": (16,)}, statistics={"mean": (5,)})
STATISTICS = 64  # 5 floats, padded


def test_each_tensor_is_padded_to_64_bytes() -> None:
    assert [bucket.nbytes for bucket in measure_buckets(LAYOUT)] == [448 + 64, 64]
    assert Bucket(names=(), nbytes=512, slots=0).padded(3) == 3 * 192
    assert Bucket(names=(), nbytes=512, slots=0).shard(3) == 192
    assert Bucket(names=(), nbytes=64, slots=0).padded(8) == 8 * 64


CASES = {
    "data parallel": (Parallel(data=4), (576 + STATISTICS, 576, 2 * 576, 0)),
    # over 4: 512 bytes stay, 64 bytes become 256
    "ZeRO 1": (Parallel(data=1, shard=4, zero=1), (768 + STATISTICS, 768, 2 * 192, 0)),
    "ZeRO 2": (Parallel(data=1, shard=4, zero=2), (768 + STATISTICS, 192, 2 * 192, 768)),
    "ZeRO 3": (Parallel(data=1, shard=4), (192 + STATISTICS, 192, 2 * 192, 768 + 768)),
    "hybrid": (Parallel(data=8, shard=4), (192 + STATISTICS, 192, 2 * 192, 768 + 768)),
    "zero without shards": (Parallel(data=4, zero=3), (576 + STATISTICS, 576, 2 * 576, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_by_hand(case: str) -> None:
    parallel, (parameters, gradients, optimizer, buffers) = CASES[case]
    found = bytes_per_process(LAYOUT, parallel, activations=1000)
    assert found == ProcessMemory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=1000,
        buffers=buffers,
    )
    assert found.total == parameters + gradients + optimizer + 1000 + buffers


def test_accumulation_needs_memory_for_what_is_added() -> None:
    twice = make_layout({"w": (16,)}, {"v": (32,)}, accumulate=2)
    alone = bytes_per_process(twice, Parallel(data=1))
    assert (alone.gradients, alone.buffers) == (2 * 192, 0)
    copies = bytes_per_process(twice, Parallel(data=2))
    assert (copies.gradients, copies.buffers) == (192, 128)
    assert bytes_per_process(twice, Parallel(data=2), accumulate=1).buffers == 0
    sharded = bytes_per_process(twice, Parallel(data=1, shard=2, zero=2))
    assert (sharded.gradients, sharded.buffers) == (128, 256 + 128)  # vectors and spare parts


def test_gathered_buckets_as_an_engine_plans_them() -> None:
    parallel = Parallel(data=1, shard=4)
    chain, all_at_once = (
        bytes_per_process(LAYOUT, parallel, plan=plan) for plan in (((0,), (1,)), ((0, 1),))
    )
    assert all_at_once.buffers - chain.buffers == 256


@pytest.mark.parametrize(
    ("zero", "parameters", "gradients", "buffers"),
    [(1, 768, 768, 0), (2, 768, 0, 768 + 192), (3, 0, 0, 2 * 768 + 192)],
)
def test_offload_moves_the_own_part_to_the_host(
    zero: int, parameters: int, gradients: int, buffers: int
) -> None:
    parallel = replace(Parallel(data=1, shard=4, offload=True), zero=zero)
    found = bytes_per_process(LAYOUT, parallel)
    assert (found.optimizer, found.host) == (0, 4 * 192)
    assert found.parameters == parameters + STATISTICS
    assert (found.gradients, found.buffers) == (gradients, buffers)


def test_offload_needs_shards() -> None:
    whole = Parallel(data=4)
    assert bytes_per_process(LAYOUT, replace(whole, offload=True)) == bytes_per_process(
        LAYOUT, whole
    )


def test_state_of_whole_tensors_is_divided_among_owners() -> None:
    separate = make_layout({"w": (10, 10), "b": (3,)}, flat=False)
    owner = bytes_per_process(separate, Parallel(data=1, shard=4)).optimizer
    assert owner == 2 * 4 * 100  # of w, which is not cut
    assert bytes_per_process(separate, Parallel(data=1)).optimizer == 2 * 4 * 103


def test_buckets_can_be_given_as_names() -> None:
    found = measure_buckets(LAYOUT, [["b"], ["w"], ["v"]])
    assert [(each.names, each.nbytes) for each in found] == [
        (("b",), 64), (("w",), 448), (("v",), 64),
    ]  # fmt: skip
    with pytest.raises(OptionError, match="every parameter of the program once"):
        measure_buckets(LAYOUT, [["b"], ["w"]])
    with pytest.raises(OptionError, match="'b' has parameters of several updates"):
        measure_buckets(LAYOUT, [["b", "v"], ["w"]])


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_buckets_are_those_of_a_run(name: str) -> None:
    loss, optimizer = losses.CrossEntropy(output="scores"), OPTIMIZERS[name]
    program = build_program(classifier(), loss, optimizer)
    cut = [update.parameters for update in split_updates(program, 300).program.layout.updates]
    assert bucket_names(program, 300) == cut and len(cut) > 2


def test_half_the_bytes_of_float64() -> None:
    single, double = (make_layout({"w": (64,)}, dtype=name) for name in ("float32", "float64"))
    found = [bytes_per_process(each, Parallel(data=1)).total for each in (single, double)]
    assert found[1] == 2 * found[0]


BUCKETS = st.lists(
    st.builds(
        lambda lines, slots: Bucket(names=(), nbytes=64 * lines, slots=slots),
        st.integers(1, 5000),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


@given(BUCKETS, st.sampled_from([1, 2, 3]), st.integers(1, 64), st.integers(1, 64))
def test_memory_never_grows_with_more_shards(
    buckets: list[Bucket], zero: int, few: int, more: int
) -> None:
    """Shards never grow; whole vectors only by what pads them to equal shards."""
    few, more = sorted((few, more))
    settings = replace(Parallel(data=1), zero=zero)
    one, other = (sum_memory(buckets, replace(settings, shard=n)) for n in (few, more))
    assert other.optimizer <= one.optimizer
    padding = 64 * more * len(buckets)
    if few > 1:  # one shard is data parallel, which needs no buckets in flight
        assert other.total <= one.total + 6 * padding
        assert other.gradients <= one.gradients + (padding if zero == 1 else 0)
        assert other.parameters <= one.parameters + (padding if zero < 3 else 0)


@given(BUCKETS, st.integers(2, 64))
def test_each_stage_of_zero_keeps_less(buckets: list[Bucket], n: int) -> None:
    found = [
        sum_memory(buckets, replace(Parallel(data=1, shard=n), zero=zero)) for zero in (1, 2, 3)
    ]
    kept = [each.parameters + each.gradients + each.optimizer for each in found]
    assert kept[0] > kept[1] > kept[2]
    whole = sum(bucket.padded(n) for bucket in buckets)
    assert found[2].parameters * n == whole
