"""Minimum cuts equal those of networkx."""

from __future__ import annotations

import random

import pytest

from onward.programs.memory.minimum_cut import INFINITE, FlowNetwork

networkx = pytest.importorskip("networkx")


@pytest.mark.parametrize("seed", range(20))
def test_cut_is_minimal_and_nearest_to_the_sink(seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = FlowNetwork(), networkx.DiGraph()
    edges: dict[tuple[int, int], int] = {}
    for _ in range(60):
        tail, head = sorted(rng.sample(range(14), 2))
        edges[tail, head] = rng.choice([1, 2, 3, 5, 8, INFINITE if tail > 0 else 4])
    edges[0, 13] = 1
    for (tail, head), capacity in edges.items():
        ours.add(tail, head, capacity)
        theirs.add_edge(tail, head, capacity=capacity)
    far = ours.far_side(0, 13)
    value, (_, expected) = networkx.minimum_cut(theirs, 0, 13)
    assert far == expected
    assert sum(c for (tail, head), c in edges.items() if tail not in far and head in far) == value
