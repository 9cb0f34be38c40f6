"""How vectors lie together: in blocks, as rows one behind the other. Light: names alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

Blocks: TypeAlias = tuple[tuple[str, ...], ...]

SCRATCH = "scratch_{}"  # a row that an update keeps to itself


def beside(first: str, second: str) -> str:
    """The name of two rows as one matrix.

    >>> beside("parameters", "gradients")
    'parameters|gradients'
    """
    return f"{first}|{second}"


def pairs_of(block: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every two rows of a block that lie together: where they begin, and their name.

    >>> list(pairs_of(("a", "b", "c")))
    [(0, 'a|b'), (1, 'b|c')]
    """
    for i, rows in enumerate(itertools.pairwise(block)):
        yield i, beside(*rows)
