"""The bytes that a process sends in a collective, as ring algorithms send them."""

from __future__ import annotations

from typing import Literal

Kind = Literal["all_reduce", "reduce_scatter", "all_gather"]


def ring_bytes(kind: Kind, whole: int, size: int) -> int:
    """The bytes that a process of `size` sends, of a vector of `whole` bytes, rounded down.

    all_reduce 2 B (n - 1) / n, reduce_scatter and all_gather B (n - 1) / n; for the last two, B is
    the vector of all processes.

    >>> ring_bytes("all_reduce", 100, 4), ring_bytes("all_gather", 100, 4)
    (150, 75)
    """
    return (2 if kind == "all_reduce" else 1) * whole * (size - 1) // size
