"""Find a minimum cut of a network, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import final

INFINITE = 1 << 62  # the capacity of an edge that is never cut


@final
class FlowNetwork:
    """A directed network with capacities in whole numbers.

    >>> network = FlowNetwork()
    >>> for edge in [("s", "a", 3), ("a", "b", 2), ("b", "t", INFINITE)]:
    ...     network.add(*edge)
    >>> sorted(network.far_side("s", "t"))
    ['b', 't']
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._heads: list[int] = []  # of edge i; edge i ^ 1 is its reverse
        self._left: list[int] = []  # capacity that is not used
        self._out: list[list[int]] = []  # the edges of each node

    def add(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """Add an edge."""
        a, b = self._number(tail), self._number(head)
        for start, end, amount in ((a, b, capacity), (b, a, 0)):
            self._out[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(amount)

    def far_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The nodes on the sink's side of the minimum cut that is nearest to the sink."""
        start, end = self._number(source), self._number(sink)
        while (levels := self._levels(start, end))[end] >= 0:
            self._saturate(start, end, levels)
        near_sink = self._reaching(end)
        return {name for name, number in self._numbers.items() if number in near_sink}

    def _number(self, name: Hashable) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._out)
            self._out.append([])
        return self._numbers[name]

    def _levels(self, start: int, end: int) -> list[int]:
        """The distance of each node from the start, over edges with capacity left; -1: none."""
        levels = [-1] * len(self._out)
        levels[start] = 0
        todo = deque([start])
        while todo:
            node = todo.popleft()
            for edge in self._out[node]:
                head = self._heads[edge]
                if levels[head] < 0 and self._left[edge]:
                    levels[head] = levels[node] + 1
                    if head == end:
                        return levels
                    todo.append(head)
        return levels

    def _saturate(self, start: int, end: int, levels: list[int]) -> None:
        """Send flow along shortest paths until each has a full edge."""
        next_edge = [0] * len(self._out)
        path: list[int] = []
        node = start
        while True:
            if node == end:
                amount = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= amount
                    self._left[edge ^ 1] += amount
                first = next(i for i, edge in enumerate(path) if not self._left[edge])
                node = self._heads[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._out[node]
            while next_edge[node] < len(edges):
                edge = edges[next_edge[node]]
                if self._left[edge] and levels[self._heads[edge]] == levels[node] + 1:
                    break
                next_edge[node] += 1
            else:
                if node == start:
                    return
                node = self._heads[path.pop() ^ 1]
                next_edge[node] += 1
                continue
            path.append(edge)
            node = self._heads[edge]

    def _reaching(self, end: int) -> set[int]:
        """The nodes from which capacity is left to the end."""
        found, todo = {end}, [end]
        while todo:
            node = todo.pop()
            for edge in self._out[node]:
                tail = self._heads[edge]
                if tail not in found and self._left[edge ^ 1]:
                    found.add(tail)
                    todo.append(tail)
        return found
