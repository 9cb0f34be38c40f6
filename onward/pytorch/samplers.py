"""Samplers that give every process of a distributed run samples of similar cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sized
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from onward.settings import setting_error


class IndexedDataset(Sized, Protocol):
    """A dataset of known length whose samples are read by their indices."""

    def __getitem__(self, index: int) -> Any: ...


class LoadBalancingDistributedSampler(torch.utils.data.Sampler[int]):
    """Give the processes, step by step, samples that cost about the same.

    `complexity_fn` is a sample's cost as a whole number, such as its length. The samples are
    sorted by cost, all or within consecutive groups of `group_size`, and dealt out: process r
    has each r-th sample. Then the steps are shuffled (or the groups, if there are any, before they
    are dealt out), by `seed` and the epoch: call `set_epoch` before each epoch. `random_level`,
    from 0 to 1, mixes samples of different costs. With `drop_last`, samples that do not make a
    whole step are left out; otherwise the first ones are repeated.

    >>> lengths = [5, 1, 4, 2]
    >>> ranks = [
    ...     LoadBalancingDistributedSampler(
    ...         lengths, complexity_fn=int, world_size=2, rank=rank, shuffle=False
    ...     )
    ...     for rank in (0, 1)
    ... ]
    >>> [[lengths[index] for index in sampler] for sampler in ranks]
    [[1, 4], [2, 5]]
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        complexity_fn: Callable[..., int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        self.world_size = dist.get_world_size() if world_size is None else world_size
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            law = f"a number from 0 to below the world's size, {self.world_size}"
            raise setting_error("rank", law, rank)
        if not 0.0 <= random_level <= 1.0:
            raise setting_error("random_level", "a number from 0 to 1", random_level)
        if group_size is not None and group_size < 1:
            raise setting_error("group_size", "a whole number, at least 1, or None", group_size)
        self.dataset = dataset
        self.complexity_fn = complexity_fn
        self.shuffle = shuffle
        self.group_size = group_size
        self.seed = seed
        self.drop_last = drop_last
        self.random_level = random_level
        self.epoch = 0
        steps = len(dataset) / self.world_size
        self.num_samples = math.floor(steps) if drop_last else math.ceil(steps)
        self.total_size = self.num_samples * self.world_size
        self._costs: np.ndarray[Any, Any] | None = None

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices_of_ranks()[self.rank])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the order depends; the same in all processes."""
        self.epoch = epoch

    def indices_of_ranks(self) -> list[list[int]]:
        """The samples of each process in this epoch, in order."""
        source = torch.Generator().manual_seed(self.seed + self.epoch)
        groups = self._sorted_groups(source)
        if self.shuffle and self.group_size is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=source).tolist()]
        ordered = itertools.cycle(itertools.chain.from_iterable(groups))
        dealt = [
            list(itertools.islice(ordered, self.world_size)) for _ in range(self.num_samples)
        ]  # (step, rank)
        if self.shuffle and self.group_size is None:
            dealt = [dealt[i] for i in torch.randperm(len(dealt), generator=source).tolist()]
        return [[step[rank] for step in dealt] for rank in range(self.world_size)]

    def _sorted_groups(self, source: torch.Generator) -> list[list[int]]:
        """The indices, in groups, each sorted by cost."""
        costs = self._read_costs()
        count = len(costs)
        spread = int((costs.max() - costs.min()) * self.random_level + 1) if count else 1
        if spread > 1:
            costs = costs + torch.randint(spread, (count,), generator=source).numpy()
        size = self.group_size or max(count, 1)
        starts = range(0, count, size)
        return [
            (start + np.argsort(costs[start : start + size], kind="stable")).tolist()
            for start in starts
        ]

    def _read_costs(self) -> np.ndarray[Any, Any]:
        if self._costs is None:  # reading every sample may take long
            costs = [self.complexity_fn(self.dataset[i]) for i in range(len(self.dataset))]
            self._costs = np.array(costs, np.int64)
        return self._costs


class LoadBalancingDistributedBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of a LoadBalancingDistributedSampler, as many in each process.

    `batch_fn` divides a process's indices into batches. The processes with fewer batches repeat
    their first ones; with `drop_last`, the others leave out their last ones.

    >>> sampler = LoadBalancingDistributedSampler([3, 1, 2], int, 1, 0, shuffle=False)
    >>> list(LoadBalancingDistributedBatchSampler(sampler, lambda it: [it[:2], it[2:]]))
    [[1, 2], [0]]
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], list[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise setting_error("sampler", "a LoadBalancingDistributedSampler", sampler)
        if sampler.drop_last:
            raise setting_error(
                "sampler.drop_last", "False", True, "give drop_last to the batch sampler instead"
            )
        self.sampler = sampler
        self.batch_fn = batch_fn
        self.drop_last = drop_last
        self.world_size, self.rank = sampler.world_size, sampler.rank
        self.generate_batches()

    def generate_batches(self) -> None:
        """Make the batches of this epoch, for all processes."""
        batches = [self.batch_fn(indices) for indices in self.sampler.indices_of_ranks()]
        counts = [len(each) for each in batches]
        self.total_batch = min(counts) if self.drop_last else max(counts)
        self.padded_batches = [
            list(itertools.islice(itertools.cycle(each), self.total_batch)) for each in batches
        ]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.padded_batches[self.rank])

    def __len__(self) -> int:
        return self.total_batch

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch, and make its batches."""
        self.sampler.set_epoch(epoch)
        self.generate_batches()
