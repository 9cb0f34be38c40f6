"""Run a function in threads that stand for processes, over a communicator without a network."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch


class _Done:
    def wait(self) -> None:
        pass


class Board:
    """Where the threads of a group put their tensors."""

    def __init__(self, size: int) -> None:
        self.tensors: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=60)


class ThreadCommunicator:
    """The collectives that reducers call; each is complete when it has been started."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.size, self._board = rank, len(board.tensors), board

    def _exchange(self, given: Any) -> list[Any]:
        self._board.tensors[self.rank] = given
        self._board.barrier.wait()
        found = list(self._board.tensors)
        self._board.barrier.wait()
        return found

    def all_reduce(self, tensor: torch.Tensor) -> _Done:
        found = self._exchange(tensor.clone())
        summed = found[0].clone()
        for each in found[1:]:
            summed += each
        tensor.copy_(summed)
        return _Done()

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> _Done:
        whole.copy_(torch.cat(self._exchange(part.clone())))
        return _Done()

    def all_to_all(
        self,
        received: torch.Tensor,
        given: torch.Tensor,
        received_sizes: list[int] | None = None,
        given_sizes: list[int] | None = None,
    ) -> _Done:
        sizes = given_sizes or [given.numel() // self.size] * self.size
        assert sum(sizes) == given.numel()
        found = self._exchange(given.clone().split(sizes))
        mine = [each[self.rank] for each in found]
        if received_sizes is not None:
            assert [each.numel() for each in mine] == received_sizes
        received.copy_(torch.cat(mine))
        return _Done()


def run_threads(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """`function(communicator, *arguments)` of each rank, in the order of ranks."""
    board = Board(size)

    def call(rank: int) -> Any:
        try:
            return function(ThreadCommunicator(rank, board), *arguments)
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, range(size)))
