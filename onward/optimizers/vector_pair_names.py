"""Names of pairs of vectors that are adjacent rows of one buffer (see paired_vectors.py).

Needs no onnx.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

Blocks: TypeAlias = tuple[tuple[str, ...], ...]

SCRATCH = "scratch_{}"  # a row for an intermediate result of an update


def pair_name(first: str, second: str) -> str:
    """The name of two adjacent rows as one matrix.

    >>> pair_name("parameters", "gradients")
    'parameters|gradients'
    """
    return f"{first}|{second}"


def pairs_of(block: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every two adjacent rows of a block: the index of the first, and the name of the pair.

    >>> list(pairs_of(("a", "b", "c")))
    [(0, 'a|b'), (1, 'b|c')]
    """
    for i, rows in enumerate(itertools.pairwise(block)):
        yield i, pair_name(*rows)
