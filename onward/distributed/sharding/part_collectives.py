"""PartCollectives: join the parts of a bucket's vector, or sum vectors into the parts.

Equal parts take one all_gather or reduce_scatter. Parts of whole tensors differ in size: they take
one broadcast from, or one reduce to, each owner. Both send as many bytes in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onward.distributed.communicator import Communicator, Work
from onward.programs.bucket_parts import BucketParts

Tensor = torch.Tensor


class Works:
    """Several collectives that were started, awaited together."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class PartCollectives:
    """The collectives of one bucket among the processes that shard it."""

    def __init__(self, communicator: Communicator, parts: BucketParts) -> None:
        self._communicator, self._parts = communicator, parts
        self.own = slice(*parts.ranges[communicator.rank])
        self._owners = [
            (rank, slice(*limits))
            for rank, limits in enumerate(parts.ranges)
            if limits[0] < limits[1]
        ]

    def gather(self, whole: Tensor, part: Tensor) -> Work:
        """Start to join the parts of all processes; `part` may be a view of `whole`."""
        if self._parts.is_even:
            return self._communicator.all_gather(whole, part)
        own = whole[self.own]
        if own.data_ptr() != part.data_ptr():
            own.copy_(part)
        started = [self._communicator.broadcast(whole[s], rank) for rank, s in self._owners]
        return Works(started)

    def reduce(self, part: Tensor, whole: Tensor) -> Work:
        """Start to sum `whole` over the processes, each its part; the rest of it is lost."""
        if self._parts.is_even:
            return self._communicator.reduce_scatter(part, whole)
        started = [self._communicator.reduce(whole[s], rank) for rank, s in self._owners]
        return _Copied(Works(started), part, whole[self.own])


class _Copied:
    """Sums that are copied to the own part when they are there."""

    def __init__(self, work: Work, part: Tensor, summed: Tensor) -> None:
        self._work, self._part, self._summed = work, part, summed

    def wait(self) -> None:
        self._work.wait()
        if self._part.data_ptr() != self._summed.data_ptr():
            self._part.copy_(self._summed)
