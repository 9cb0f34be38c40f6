"""GatheredParameters: whole parameters, gathered ahead of segments and freed behind (ZeRO 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onward.distributed.communicator import Work
from onward.distributed.sharding.gather_plan import Reads, plan_gathers

Gather = Callable[[int], Work]


class GatheredParameters:
    """The buckets whose whole parameters are held now, or will be soon.

    `gather` starts to gather a bucket, `release` frees it.
    """

    def __init__(self, gather: Gather, release: Callable[[int], None]) -> None:
        self._gather, self._release = gather, release
        self._plans: dict[str, Sequence[tuple[int, ...]]] = {}
        self._reads: dict[str, Reads] = {}
        self._held: dict[int, Work] = {}

    def add_graph(self, graph: str, reads: Reads) -> None:
        """Plan the segments of a graph."""
        self._reads[graph], self._plans[graph] = reads, plan_gathers(reads)

    def knows(self, graph: str) -> bool:
        return graph in self._plans

    def plan(self, graph: str) -> Sequence[tuple[int, ...]]:
        """The buckets that are held while each segment runs."""
        return self._plans[graph]

    def before(self, graph: str, segment: int) -> None:
        """Before a segment: what it reads is there, what is read next is on its way."""
        wanted = self._plans[graph][segment]
        for bucket in [each for each in self._held if each not in wanted]:
            self._drop(bucket)
        for bucket in wanted:
            if bucket not in self._held:
                self._held[bucket] = self._gather(bucket)
        for bucket in self._reads[graph][segment]:
            self._held[bucket].wait()

    def release_all(self) -> None:
        """Free all buckets, such as before their parameters change."""
        for bucket in list(self._held):
            self._drop(bucket)

    def _drop(self, bucket: int) -> None:
        self._held.pop(bucket).wait()  # it may still be written to
        self._release(bucket)
