"""ShardedExchange: processes hold parts of vectors (ZeRO 1, 2, 3), in one copy or in several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.exchange import as_tensor
from onward.distributed.process_groups import ProcessGroups
from onward.distributed.sharding.gathered_parameters import GatheredParameters
from onward.distributed.sharding.part_collectives import PartCollectives
from onward.distributed.sharding.sharded_store import ShardedStore
from onward.programs.bucket_parts import Sharding
from onward.programs.program import Layout
from onward.providers.provider import Results, ShardedTraining

Tensor = torch.Tensor


@dataclass(frozen=True)
class _Reduction:
    """The gradients of a bucket on their way into the own part."""

    bucket: int
    work: Work
    spare: Tensor | None  # where they arrive, if they are added to the part, or copied to the host
    first: bool
    last: bool


class ShardedExchange:
    """Sums gradients into parts, and joins parts of parameters.

    ZeRO 1 sums once for each update; ZeRO 2 and 3 sum each micro-batch, and free the whole vector.
    Parts are summed over copies of the model once for each update. ZeRO 1 and 2 join parameters
    after each update, ZeRO 3 ahead of each segment.
    """

    def __init__(
        self, engine: ShardedTraining, layout: Layout, groups: ProcessGroups, sharding: Sharding
    ) -> None:
        self._engine, self._groups, self._sharding = engine, groups, sharding
        self._parts = engine.store
        self._collectives = [PartCollectives(groups.shards, each) for each in sharding.buckets]
        self._gathered = GatheredParameters(self._gather, self._parts.release_parameters)
        self._reductions: list[_Reduction] = []
        self._works: list[Work] = []  # sums of parts over copies
        self.is_reduced = False  # whether the accumulated gradients are those of all processes
        self.store = ShardedStore(layout, sharding, groups, self._parts, self)

    @property
    def gathered(self) -> GatheredParameters:
        """What is held of the parameters, where they are sharded."""
        return self._gathered

    # -- parameters ----------------------------------------------------------------------------

    def before(self, segment: int) -> None:
        if not self._sharding.has_whole_parameters:
            self._plan("train")
            self._gathered.before("train", segment)

    def infer(self, graph: str, feeds: Any) -> Results:
        if self._sharding.has_whole_parameters:
            results: Results = getattr(self._engine, graph)(feeds)
            return results
        self._plan(graph)
        results = self._engine.infer_segments(graph, feeds, _Inference(self._gathered, graph))
        self._gathered.release_all()
        return results

    def _plan(self, graph: str) -> None:
        if not self._gathered.knows(graph):
            self._gathered.add_graph(graph, self._engine.segment_reads(graph))

    def finish_update(self, updated: bool) -> None:
        self._gathered.release_all()
        if updated and self._sharding.has_whole_parameters:
            works = [self._gather(bucket) for bucket in range(len(self._collectives))]
            for work in works:
                work.wait()

    def _gather(self, bucket: int) -> Work:
        whole = as_tensor(self._parts.hold_parameters(bucket))
        part = as_tensor(self._parts.own_part(bucket).parameters)
        return self._collectives[bucket].gather(whole, part.to(whole.device))

    # -- gradients -----------------------------------------------------------------------------

    def begin_gradients(self, first: bool, scale: float) -> bool:
        if self.is_reduced and not first:
            self._keep_sums_once()
        self.is_reduced = False
        return first or not self._sharding.has_whole_gradients

    def after(self, bucket: int, first: bool, last: bool) -> None:
        if last or not self._sharding.has_whole_gradients:
            self._reduce(bucket, first, last)
        if last:
            self.is_reduced = True
        while len(self._reductions) > 1:  # the one before had this segment's time
            self._complete(self._reductions.pop(0))

    def _reduce(self, bucket: int, first: bool, last: bool) -> None:
        """Start to sum whole gradients over the shard group, into the own part or a spare one."""
        whole = as_tensor(self._parts.hold_gradients(bucket))
        part = as_tensor(self._parts.own_part(bucket).gradients)
        adds = not first and not self._sharding.has_whole_gradients
        spare = None
        if adds or part.device != whole.device:
            spare = as_tensor(self._parts.hold_spare(bucket))
        work = self._collectives[bucket].reduce(part if spare is None else spare, whole)
        self._reductions.append(_Reduction(bucket, work, spare, not adds, last))

    def _complete(self, done: _Reduction) -> None:
        """Wait for a sum, add it to the part, free its memory; then sum over the copies."""
        done.work.wait()
        part = as_tensor(self._parts.own_part(done.bucket).gradients)
        if done.spare is not None and done.first:
            part.copy_(done.spare)
        elif done.spare is not None:
            part.add_(done.spare.to(part.device))
        self._parts.release_spare(done.bucket)
        self._parts.release_gradients(done.bucket)
        if done.last:
            self._sum_over_copies(part)

    def _sum_over_copies(self, part: Tensor) -> None:
        if self._groups.copies.size > 1 and part.numel():
            self._works.append(self._groups.copies.all_reduce(part))

    def reduce_all(self) -> None:
        """Sum what is accumulated over all processes, unless it is, and wait for it."""
        for bucket in range(len(self._collectives)) if not self.is_reduced else ():
            if self._sharding.has_whole_gradients:
                self._reduce(bucket, first=True, last=True)
            else:
                self._complete_all()
                self._sum_over_copies(as_tensor(self._parts.own_part(bucket).gradients))
        self.settle()
        self.is_reduced = True

    def settle(self) -> None:
        """Wait for all sums that were started."""
        self._complete_all()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _complete_all(self) -> None:
        while self._reductions:
            self._complete(self._reductions.pop(0))

    @property
    def unreduced_over(self) -> Communicator | None:
        """The processes over which accumulated gradients are still to be summed; None: none."""
        self.settle()
        if self.is_reduced:
            return None
        groups = self._groups
        return groups.whole if self._sharding.has_whole_gradients else groups.copies

    def _keep_sums_once(self) -> None:
        """Before more is added to sums of all processes: keep them in one process each."""
        self.reduce_all()
        for bucket, each in enumerate(self._collectives):
            part = as_tensor(self._parts.own_part(bucket).gradients)
            if self._groups.copies.rank:
                part.zero_()
            if self._sharding.has_whole_gradients:
                whole = as_tensor(self._parts.hold_gradients(bucket))
                kept = part.to(whole.device, copy=True)
                whole.zero_()[each.own].copy_(kept)

    # -- the update ----------------------------------------------------------------------------

    def finish_gradients(self, loss_finite: bool) -> None:
        self._gathered.release_all()
        self.reduce_all()
        squares, finite = self._measure()
        self._engine.gradients_reduced(squares, finite and loss_finite)

    def _measure(self) -> tuple[float, bool]:
        """The sum of squares of all gradients, and whether all are finite, in all processes."""
        squares, finite = 0.0, True
        for part in map(as_tensor, self._parts.gradient_buffers()):
            own = float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
            finite = finite and (math.isfinite(own) or bool(torch.isfinite(part).all()))
            squares += own
        copies = self._groups.copies.size  # each has the same gradients
        numbers = torch.tensor([squares / copies, not finite], dtype=torch.float64)
        self._groups.whole.all_reduce(numbers).wait()
        return float(numbers[0]), not numbers[1]


@dataclass(frozen=True)
class _Inference:
    """The hooks of an evaluation in segments."""

    gathered: GatheredParameters
    graph: str

    def before(self, segment: int) -> None:
        self.gathered.before(self.graph, segment)

    def scale(self) -> float:
        return 1.0

    def after(self, update: int) -> None:
        pass
