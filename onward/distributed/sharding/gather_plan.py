"""plan_gathers: which buckets of parameters are held while each segment runs.

A bucket is gathered ahead of the segment that reads it and freed behind it. While a segment runs,
the buckets of the next one that reads others are gathered. A bucket that was freed is gathered
again for a later segment; one that is held when the forward pass ends stays, if the backward pass
begins with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Reads = Sequence[Sequence[int]]  # the buckets that each segment reads


def plan_gathers(reads: Reads) -> list[tuple[int, ...]]:
    """The buckets to hold while each segment runs: those it reads, then those that are read next.

    >>> plan_gathers([(2,), (1,), (0,), (), (0, 1), (2,)])
    [(2, 1), (1, 0), (0, 1), (0, 1), (0, 1, 2), (2,)]
    """
    found = []
    for i, own in enumerate(reads):
        later = (each for each in reads[i + 1 :] if not set(each) <= set(own))
        found.append(tuple(dict.fromkeys([*own, *next(later, ())])))
    return found


def count_gathers(plan: Reads) -> Counter[int]:
    """How often each bucket is gathered in a run of the plan.

    >>> sorted(count_gathers([(2, 1), (1, 0), (0, 1), (0, 1, 2)]).items())
    [(0, 1), (1, 1), (2, 2)]
    """
    counts: Counter[int] = Counter()
    held: set[int] = set()
    for wanted in plan:
        counts.update(set(wanted) - held)
        held = set(wanted)
    return counts
