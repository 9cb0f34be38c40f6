"""Choose a format for each weight so that all of them fit into a number of bytes.

Greedy: every weight begins with its smallest format; then, again and again, the change that
removes the most error for a byte is made, as long as it fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onward.errors import OptionError
from onward.formatting import show_bytes

Key = TypeVar("Key", bound=Hashable)
Format = TypeVar("Format")


@dataclass(frozen=True)
class Option(Generic[Format]):
    """A format for a weight, the bytes that it takes and the error that it makes."""

    format: Format
    nbytes: int
    error: float


def allocate(options: Mapping[Key, Sequence[Option[Format]]], budget: int) -> dict[Key, Format]:
    """The format of each weight; the bytes of all of them are at most `budget`.

    >>> small, large = Option("int4", 10, 0.5), Option("int8", 20, 0.1)
    >>> allocate({"a": [small, large], "b": [Option("int4", 10, 0.1)]}, 30)
    {'a': 'int8', 'b': 'int4'}
    """
    ladders = {key: _useful(each) for key, each in options.items()}
    total = sum(ladder[0].nbytes for ladder in ladders.values())
    if total > budget:
        raise OptionError(
            f"the weights take {show_bytes(total)} in the smallest formats, and "
            f"{show_bytes(max(budget, 0))} are left for them\ngive a larger size or more bits"
        )
    chosen = dict.fromkeys(ladders, 0)
    order = {key: place for place, key in enumerate(ladders)}  # ties: the first weight first
    names = list(ladders)
    queue: list[tuple[float, int, int, int]] = []

    def push(key: Key) -> None:
        """Queue the next steps of one weight."""
        ladder, now = ladders[key], chosen[key]
        for step in range(now + 1, len(ladder)):
            gain = ladder[now].error - ladder[step].error
            cost = ladder[step].nbytes - ladder[now].nbytes
            heapq.heappush(queue, (-gain / cost, order[key], now, step))

    for key in ladders:
        push(key)
    while queue:
        _, place, now, step = heapq.heappop(queue)
        key = names[place]
        ladder = ladders[key]
        cost = ladder[step].nbytes - ladder[now].nbytes
        if now != chosen[key] or total + cost > budget:
            continue
        total += cost
        chosen[key] = step
        push(key)
    return {key: ladders[key][step].format for key, step in chosen.items()}


def _useful(options: Sequence[Option[Format]]) -> list[Option[Format]]:
    """Options by size, without those that a smaller one is as good as."""
    kept: list[Option[Format]] = []
    for option in sorted(options, key=lambda each: (each.nbytes, each.error)):
        if not kept or option.error < kept[-1].error:
            kept.append(option)
    return kept
