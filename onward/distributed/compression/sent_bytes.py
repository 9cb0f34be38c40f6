"""The bytes of collectives, as Communicator counts them."""

from __future__ import annotations


def all_reduce_bytes(whole: int, size: int) -> int:
    """What each of `size` processes sends to sum `whole` bytes.

    >>> all_reduce_bytes(4000, 4)
    6000
    """
    return 2 * whole * (size - 1) // size


def all_gather_bytes(part: int, size: int) -> int:
    """What each of `size` processes sends to give its `part` bytes to all others."""
    return part * (size - 1)
