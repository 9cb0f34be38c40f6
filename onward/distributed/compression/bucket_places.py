"""Count the elements of a bucket's tensors, and find the gaps between them in its vector."""

from __future__ import annotations

from collections.abc import Iterator

from onward.distributed.communicator import Communicator
from onward.programs.vector_offsets import Places


def count_elements(places: Places) -> int:
    """The number of elements of all tensors, without the gaps between them."""
    return sum(place.stop - place.start for place in places.slices.values())


def find_gaps(places: Places) -> Iterator[slice]:
    """The slices of a vector that no tensor has: they are zeros and must stay so."""
    end = 0
    for place in sorted(places.slices.values(), key=lambda each: int(each.start)):
        if place.start > end:
            yield slice(end, place.start)
        end = max(end, place.stop)
    if end < places.size:
        yield slice(end, places.size)


def sends_nothing(communicator: Communicator, places: Places) -> bool:
    """Whether nothing is sent: one process, or tensors without elements."""
    return communicator.size == 1 or count_elements(places) == 0
