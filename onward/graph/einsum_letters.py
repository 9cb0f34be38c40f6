"""The letters of an Einsum's equation, one for each axis of its operands and its result."""

from __future__ import annotations

import string
from collections import Counter


def expand_equation(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, one per axis, '...' expanded.

    >>> expand_equation("...ij,jk", [4, 2])
    (['abij', 'jk'], 'abik')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = [
        r - len(term.replace("...", "")) if "..." in term else 0 for term, r in zip(terms, ranks)
    ]
    batch = "".join(spare[: max(hidden, default=0)])
    if not arrow:  # first the axes of '...', then letters that occur once, sorted
        counts = Counter(left.replace("...", "").replace(",", ""))
        right = "..." + "".join(sorted(letter for letter, count in counts.items() if count == 1))
    filled = [t.replace("...", batch[len(batch) - n :]) for t, n in zip(terms, hidden)]
    return filled, right.replace("...", batch)
