"""Find a plan whose file, as written, has at most the bytes that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onward.compress.quantization.quantization_plan import Plan
from onward.errors import OptionError


def fit_file(
    fit: Callable[[int], tuple[Plan, int]],
    measure: Callable[[Plan], int],
    size: int,
    left: int,
    least: Sequence[int],
) -> Plan:
    """A plan whose file has at most `size` bytes.

    What a plan adds to the graph (nodes, AWQ's factors, the sums of blocks) is known exactly once
    it is written: what is too much, the weights must save.

    Args:
        fit: a number of bytes to a plan whose weights take at most so many, and what they take
        measure: the bytes of a plan's file
        size: those that it may have
        left: the bytes that are left for the weights if a plan adds nothing to the graph
        least: the bytes of the weights in their smallest formats, of each kind; they are tried
            before they are given up, as they may add less to the graph
    """
    untried = sorted(nbytes for nbytes in set(least) if nbytes <= left)
    smallest = size - left + min(least)
    while left >= min(least):
        plan, taken = fit(left)
        written = measure(plan)
        if written <= size:
            return plan
        untried = [nbytes for nbytes in untried if nbytes < taken]
        smallest, left = written, min(left, taken) - (written - size)
        if untried and left < untried[-1]:
            left = untried.pop()
    raise OptionError(
        f"the file needs at least {smallest:,} bytes in the smallest formats; size is {size:,}\n"
        "give a larger size"
    )
