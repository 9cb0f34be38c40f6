"""Ranks as threads that take turns, so that what several processes do is the same at every run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from onward.errors import PeerLost

T = TypeVar("T")
PATIENCE = 300.0  # seconds; a guard against a deadlock


class _Turns:
    """Whose turn it is, and what the ranks gave in each round."""

    def __init__(self, size: int) -> None:
        self.size, self.turn, self.round = size, 0, 0
        self.given: list[list[Any]] = [[None] * size]
        self.broken = False
        self.changed = threading.Condition()

    def take(self, rank: int, after: int = -1) -> None:
        """Wait for this rank's turn, in a round after that one."""
        due = self.changed.wait_for(
            lambda: self.broken or (self.turn == rank and self.round > after), PATIENCE
        )
        if self.broken or not due:
            raise PeerLost("another rank is gone\nthis is a test")

    def give(self) -> None:
        """Pass the turn to the next rank; after the last, to the first, in the next round."""
        self.turn += 1
        if self.turn == self.size:
            self.turn, self.round = 0, self.round + 1
            self.given.append([None] * self.size)
        self.changed.notify_all()


class ThreadRank:
    """One rank of a group of threads."""

    def __init__(self, turns: _Turns, rank: int) -> None:
        self._turns, self.rank, self.size = turns, rank, turns.size

    def gather_objects(self, value: Any) -> list[Any]:
        turns = self._turns
        with turns.changed:
            now = turns.round
            turns.given[now][self.rank] = value
            turns.give()
            turns.take(self.rank, after=now)
            return list(turns.given[now])


def run_ranks(size: int, function: Callable[[ThreadRank], T]) -> list[T]:
    """The results of function(rank) by rank; raises the first error that is not of a lost peer."""
    turns, results, errors = _Turns(size), {}, []

    def run(rank: int) -> None:
        try:
            with turns.changed:
                turns.take(rank)
            results[rank] = function(ThreadRank(turns, rank))
            with turns.changed:
                turns.give()
        except BaseException as error:
            errors.append(error)
            with turns.changed:
                turns.broken = True
                turns.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [results[rank] for rank in range(size)]
