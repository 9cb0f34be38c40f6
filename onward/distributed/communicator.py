"""Communicator: the collectives of a process group, counted."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import distributed as dist

from onward.distributed.lost_peers import PeerProcess, describe_loss
from onward.distributed.ring_bytes import Kind, ring_bytes
from onward.errors import PeerLost

Tensor = torch.Tensor

_OPEN: weakref.WeakSet[Communicator] = weakref.WeakSet()  # those that hold their group

# torch 2.13 renamed them
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Work(Protocol):
    """A collective that was started."""

    def wait(self) -> None:
        """Wait until its results are there; PeerLost if another process is gone."""
        ...


class Communicator:
    """The collectives of one process group, each started at once and awaited later.

    `sent` counts the bytes that this process sends, by collective: `ring_bytes`; of all_to_all what
    is for others, of B bytes broadcast B from its source, reduce B from all but its target. `calls`
    counts the collectives. `processes` are those of the run by rank, to say which one is lost.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, processes: Sequence[PeerProcess] = ()
    ) -> None:
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        ranks = dist.get_process_group_ranks(self.group) if processes else []
        self._others = {rank: processes[rank] for rank in ranks if rank != dist.get_rank()}
        _OPEN.add(self)
        self.is_on_one_machine = len({processes[rank].host for rank in ranks}) == 1

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Work:
        """Replace a tensor by its sum (min, max, avg) over the processes."""
        self._count("all_reduce", _bytes(tensor))
        return self._start(
            lambda: dist.all_reduce(tensor, _OPERATIONS[op], self.group, async_op=True)
        )

    def reduce_scatter(self, part: Tensor, whole: Tensor) -> Work:
        """Sum `whole` over the processes; `part` becomes this process's part of the sum."""
        self._count("reduce_scatter", _bytes(whole))
        return self._start(lambda: _reduce_scatter(part, whole, group=self.group, async_op=True))

    def all_gather(self, whole: Tensor, part: Tensor) -> Work:
        """Join the parts of all processes in `whole`, in the order of ranks."""
        self._count("all_gather", _bytes(whole))
        return self._start(lambda: _all_gather(whole, part, group=self.group, async_op=True))

    def all_to_all(
        self,
        received: Tensor,
        given: Tensor,
        received_sizes: list[int] | None = None,
        given_sizes: list[int] | None = None,
    ) -> Work:
        """Give part i of `given` to process i; sizes in elements, None: parts of equal sizes."""
        own = given.numel() // self.size if given_sizes is None else given_sizes[self.rank]
        self.sent["all_to_all"] += (given.numel() - own) * given.element_size()
        self.calls["all_to_all"] += 1
        return self._start(
            lambda: dist.all_to_all_single(
                received, given, received_sizes, given_sizes, group=self.group, async_op=True
            )
        )

    def broadcast(self, tensor: Tensor, source: int = 0) -> Work:
        """Replace a tensor by that of process `source` of the group."""
        self.calls["broadcast"] += 1
        if self.rank == source:
            self.sent["broadcast"] += _bytes(tensor)
        at = dist.get_global_rank(self.group, source)
        return self._start(lambda: dist.broadcast(tensor, at, self.group, async_op=True))

    def reduce(self, tensor: Tensor, target: int = 0) -> Work:
        """Sum a tensor over the processes, in process `target`; that of others is lost."""
        self.calls["reduce"] += 1
        if self.rank != target:
            self.sent["reduce"] += _bytes(tensor)
        at = dist.get_global_rank(self.group, target)
        return self._start(
            lambda: dist.reduce(tensor, at, dist.ReduceOp.SUM, self.group, async_op=True)
        )

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all processes, small and rarely: they are pickled."""
        found: list[Any] = [None] * self.size
        with self._peers():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """The value of process `source` of the group: it is pickled."""
        found = [value]
        with self._peers():
            at = dist.get_global_rank(self.group, source)
            dist.broadcast_object_list(found, at, group=self.group)
        return found[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        self.all_reduce(torch.zeros(1)).wait()

    def _count(self, kind: Kind, whole: int) -> None:
        self.sent[kind] += ring_bytes(kind, whole, self.size)
        self.calls[kind] += 1

    def _start(self, start: Callable[[], Any]) -> Work:
        with self._peers():
            return _Started(start(), self._peers)

    @contextmanager
    def _peers(self) -> Iterator[None]:
        """Within it, an error of a collective is raised as PeerLost."""
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            raise PeerLost(
                "another process of this run is gone or did not answer: "
                f"{describe_loss(str(error), self._others)}\nstart the run again with --resume; "
                "`onward launch --max-restarts` does it by itself"
            ) from error


def release_groups() -> None:
    """Drop the process groups of all communicators, so that the threads of gloo can end."""
    for each in list(_OPEN):
        each.group = None


class _Started:
    """A collective of torch.distributed, whose errors become ours."""

    def __init__(self, work: Any, peers: Callable[[], AbstractContextManager[None]]) -> None:
        self._work, self._peers = work, peers

    def wait(self) -> None:
        if self._work is not None:
            with self._peers():
                self._work.wait()


_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
