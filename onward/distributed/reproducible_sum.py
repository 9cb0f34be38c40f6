"""OrderedSum: gradients of logical shards, added in the same order on any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.ring_bytes import ring_bytes
from onward.distributed.staged_work import StagedWork
from onward.errors import DistributedError
from onward.programs.batch_rows import even_part

Tensor = torch.Tensor


class OrderedSum:
    """Sums one vector of each logical shard of a batch: ((s0 + s1) + s2) + ...

    Floating-point addition depends on its order. Here the order is that of the shards, for each
    element, so the sum is the same bit for bit on one process as on many. Each process receives
    its slice of all shards, adds them, and gives the sum to all.
    """

    def __init__(self, communicator: Communicator, logical_shards: int) -> None:
        self._communicator, self._shards = communicator, logical_shards

    def shards_of(self, rank: int) -> range:
        """The shards that a process computes: a run of them, the first processes one more.

        >>> from types import SimpleNamespace
        >>> [*map(OrderedSum(SimpleNamespace(size=3), 4).shards_of, range(3))]
        [range(0, 2), range(2, 3), range(3, 4)]
        """
        return even_part(self._shards, self._communicator.size, rank)

    def reduce(self, vectors: Sequence[Tensor], out: Tensor) -> Work:
        """Start to write the sum over all shards to `out`; `vectors` are those of this process.

        `out` may be one of the vectors.
        """
        own = self.shards_of(self._communicator.rank)
        if len(vectors) != len(own) or any(each.numel() != out.numel() for each in vectors):
            raise DistributedError(
                f"process {self._communicator.rank} must give {len(own)} vectors of {out.numel()} "
                f"elements, not {[each.numel() for each in vectors]}\n"
                f"give the gradients of the logical shards {[*own]}, in this order"
            )
        if self._communicator.size == 1:
            out.copy_(add_in_order(vectors))
            return StagedWork(iter(()))
        return StagedWork(self._exchange(vectors, out))

    def bytes_sent(self, elements: int, item: int = 4) -> int:
        """The bytes that this process sends for a vector."""
        size, rank = self._communicator.size, self._communicator.rank
        own = self._slice_sizes(elements)[rank]
        shards = len(self.shards_of(rank)) * (elements - own) * item
        return shards + ring_bytes("all_gather", item * size * -(-elements // size), size)

    def _slice_sizes(self, elements: int) -> list[int]:
        """The elements of each process's slice: equal ones, then a shorter one, then none."""
        size = self._communicator.size
        most = -(-elements // size)
        return [max(0, min(most, elements - rank * most)) for rank in range(size)]

    def _exchange(self, vectors: Sequence[Tensor], out: Tensor) -> Iterator[None]:
        rank, size = self._communicator.rank, self._communicator.size
        sizes = self._slice_sizes(out.numel())
        cuts = [torch.split(each, sizes) for each in vectors]  # (shard, process)
        pieces = [each[to] for to in range(size) for each in cuts]
        given = torch.cat(pieces) if pieces else out.new_empty(0)
        # the runs of shards of processes 0, 1, ... are in order, so rows are shards 0, 1, ...
        rows = out.new_empty(self._shards, sizes[rank])
        work = self._communicator.all_to_all(
            rows.view(-1),
            given,
            [len(self.shards_of(source)) * sizes[rank] for source in range(size)],
            [len(vectors) * each for each in sizes],
        )
        yield
        work.wait()
        part = out.new_zeros(sizes[0])
        part[: sizes[rank]] = add_in_order(rows)
        whole = out if size * sizes[0] == out.numel() else out.new_empty(size * sizes[0])
        self._communicator.all_gather(whole, part).wait()
        if whole is not out:
            out.copy_(whole[: out.numel()])


def add_in_order(rows: Sequence[Tensor] | Tensor) -> Tensor:
    """The sum over rows, one after the other: ((r0 + r1) + r2) + ..."""
    summed = rows[0].clone()
    for row in rows[1:]:
        summed += row
    return summed
