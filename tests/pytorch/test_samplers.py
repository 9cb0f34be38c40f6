"""Load-balancing samplers: every process has samples of similar cost, and all samples are seen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from onward.errors import OptionError
from onward.pytorch.samplers import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

COSTS = torch.randint(0, 100, (101,), generator=torch.Generator().manual_seed(0)).tolist()


def sampler(rank: int = 0, world_size: int = 2, **settings: Any) -> LoadBalancingDistributedSampler:
    given = {"world_size": world_size, "rank": rank, **settings}
    return LoadBalancingDistributedSampler(COSTS, int, **given)


def costs(given: LoadBalancingDistributedSampler) -> list[int]:
    return [COSTS[index] for index in given]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("group_size", [None, 1, 8, 1000])
@pytest.mark.parametrize("random_level", [0.0, 0.5])
def test_every_sample_is_seen(
    world_size: int, shuffle: bool, group_size: int | None, random_level: float
) -> None:
    ranks = [
        sampler(r, world_size, shuffle=shuffle, group_size=group_size, random_level=random_level)
        for r in range(world_size)
    ]
    seen = [list(each) for each in ranks]
    assert {index for indices in seen for index in indices} == set(range(101))
    assert {len(indices) for indices in seen} == {-(-101 // world_size)} == {len(ranks[0])}


def test_processes_have_similar_costs_in_each_step() -> None:
    ordered = sorted(COSTS)
    gap = max(b - a for a, b in itertools.pairwise(ordered))
    first, second = costs(sampler(0)), costs(sampler(1))
    unshuffled = costs(sampler(0, shuffle=False))
    assert unshuffled == sorted(unshuffled)
    assert sum(abs(a - b) > gap for a, b in zip(first, second)) <= 1  # the last, filled up


def test_groups_are_sorted_and_shuffled() -> None:
    plain = costs(sampler(0, 1, shuffle=False, group_size=8))
    groups = [sorted(COSTS[i : i + 8]) for i in range(0, 101, 8)]
    assert plain == [cost for group in groups for cost in group]
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = sampler(0, 1, group_size=8)
    wanted = [cost for i in order for cost in groups[i]]
    assert costs(shuffled) == wanted
    assert costs(shuffled) == wanted  # again


def test_the_order_depends_on_the_epoch_and_the_seed() -> None:
    one = sampler()
    before = list(one)
    assert list(one) == before == list(sampler())
    one.set_epoch(1)
    assert list(one) != before and list(one) == list(sampler(seed=1))


def test_the_last_samples_can_be_dropped() -> None:
    one = sampler(drop_last=True)
    assert len(list(one)) == len(one) == 50


def test_costs_are_read_once() -> None:
    calls: list[int] = []

    def cost(sample: int) -> int:
        calls.append(sample)
        return sample

    one = LoadBalancingDistributedSampler([3, 1, 2], cost, world_size=1, rank=0)
    list(one)
    list(one)
    assert calls == [3, 1, 2]


def batches_of(size: int) -> Any:
    return lambda indices: [indices[i : i + size] for i in range(0, len(indices), size)]


def test_batches_are_of_the_samplers_indices() -> None:
    inner = sampler(0, 1, shuffle=False)
    batches = LoadBalancingDistributedBatchSampler(inner, batches_of(12))
    assert [len(batch) for batch in batches] == [12] * 8 + [5]
    assert [index for batch in batches for index in batch] == list(inner)
    loader = torch.utils.data.DataLoader(COSTS, batch_sampler=batches)  # type: ignore[arg-type]
    assert len(list(loader)) == len(batches) == 9


@pytest.mark.parametrize(("drop_last", "count"), [(False, 7), (True, 2)])
def test_processes_have_as_many_batches(drop_last: bool, count: int) -> None:
    def batch_fn(indices: list[int]) -> list[list[int]]:
        many = 7 if 0 in indices else 2
        return [[i] for i in indices[:many]]

    found = [
        LoadBalancingDistributedBatchSampler(sampler(rank), batch_fn, drop_last=drop_last)
        for rank in (0, 1)
    ]
    assert [len(list(each)) for each in found] == [count, count]
    before = list(found[0])
    found[0].set_epoch(1)
    assert list(found[0]) != before


@pytest.mark.parametrize(
    ("settings", "law"),
    [
        ({"rank": 2}, "rank must be a number from 0 to below the world's size, 2, not 2"),
        ({"rank": -1}, "rank must be"),
        ({"random_level": 1.5}, "random_level must be a number from 0 to 1, not 1.5"),
        ({"group_size": 0}, "group_size must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        sampler(**settings)


def test_batch_samplers_take_samplers_that_drop_nothing() -> None:
    with pytest.raises(OptionError, match="sampler must be a LoadBalancingDistributedSampler"):
        LoadBalancingDistributedBatchSampler([1], batches_of(2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"sampler\.drop_last must be False"):
        LoadBalancingDistributedBatchSampler(sampler(drop_last=True), batches_of(2))
