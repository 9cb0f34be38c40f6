"""OrderedSum: the same bits on any number of processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from onward.distributed.communicator import Communicator
from onward.distributed.reproducible_sum import OrderedSum, add_in_order
from onward.errors import DistributedError
from tests.distributed.group_of_processes import run_processes
from tests.distributed.group_of_threads import run_threads

SIZES = [103, 1, 2, 24]  # of vectors in flight at once


def shard(number: int, elements: int) -> torch.Tensor:
    """Numbers of very different sizes, whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(number)
    exponents = torch.randint(-12, 12, (elements,), generator=generator)
    return torch.randn(elements, generator=generator) * torch.exp2(exponents.float())


def sum_shards(communicator: Any, logical_shards: int) -> list[np.ndarray[Any, Any]]:
    ordered = OrderedSum(communicator, logical_shards)
    own = ordered.shards_of(communicator.rank)
    outs = [torch.full((size,), torch.nan) for size in SIZES]
    works = [ordered.reduce([shard(number, out.numel()) for number in own], out) for out in outs]
    for work in works:
        work.wait()
    return [out.numpy() for out in outs]


def sum_in_groups(rank: int) -> list[Any]:
    """In groups of 1, 2, 3 and all processes: the sums of 4 and of 12 shards, and bytes."""
    found: list[Any] = []
    for size in (1, 2, 3, 4):
        group = dist.new_group([*range(size)])
        if rank < size:
            communicator = Communicator(group)
            sums = [sum_shards(communicator, shards) for shards in (4, 12)]
            predicted = sum(
                OrderedSum(communicator, shards).bytes_sent(elements)
                for shards in (4, 12)
                for elements in SIZES
            )
            found.append((sums, sum(communicator.sent.values()), predicted))
    return found


@pytest.mark.integration
def test_sums_are_the_same_bits_on_1_2_3_and_4_processes() -> None:
    found = run_processes(sum_in_groups, 4)
    expected = [
        [add_in_order([shard(i, size) for i in range(shards)]).numpy() for size in SIZES]
        for shards in (4, 12)
    ]
    for of_rank in found:
        for sums, sent, predicted in of_rank:
            assert sent == predicted
            for one, other in zip(sums, expected):
                assert [each.tobytes() for each in one] == [each.tobytes() for each in other]
    assert [len(of_rank) for of_rank in found] == [4, 3, 2, 1]


def test_shards_are_added_in_their_order() -> None:
    vectors = [shard(i, 103) for i in range(4)]
    s0, s1, s2, s3 = vectors
    assert torch.equal(add_in_order(vectors), ((s0 + s1) + s2) + s3)
    assert not torch.equal(add_in_order(vectors), (s0 + s1) + (s2 + s3))
    assert not torch.equal(add_in_order(vectors), add_in_order(vectors[::-1]))


@given(
    size=st.integers(1, 5), shards=st.integers(1, 9), elements=st.integers(0, 40), own=st.booleans()
)
def test_any_sizes(size: int, shards: int, elements: int, own: bool) -> None:
    def run(communicator: Any) -> torch.Tensor:
        ordered = OrderedSum(communicator, shards)
        vectors = [shard(i, elements) for i in ordered.shards_of(communicator.rank)]
        out = vectors[-1] if own and vectors else torch.empty(elements)
        ordered.reduce(vectors, out).wait()
        return out

    expected = add_in_order([shard(i, elements) for i in range(shards)])
    for found in run_threads(run, size):
        assert torch.equal(found, expected)


@given(size=st.integers(1, 20), shards=st.integers(1, 50))
def test_every_shard_has_one_process(size: int, shards: int) -> None:
    ordered = OrderedSum(SimpleNamespace(size=size, rank=0), shards)  # type: ignore[arg-type]
    runs = [ordered.shards_of(rank) for rank in range(size)]
    assert [number for run in runs for number in run] == [*range(shards)]
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_a_wrong_number_of_vectors() -> None:
    ordered = OrderedSum(SimpleNamespace(size=2, rank=1), 5)  # type: ignore[arg-type]
    with pytest.raises(DistributedError, match=r"must give 2 vectors of 4 elements, not \[4\]"):
        ordered.reduce([torch.ones(4)], torch.ones(4))
