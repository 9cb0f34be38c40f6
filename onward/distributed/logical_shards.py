"""Logical shards: parts of a batch, whose gradients are added in one order on any processes.

With L logical shards, each batch has L parts, and each process computes a run of them. The weights
of a part, its random numbers and the order of all sums depend only on the number of the part, so
a run on 4, 3 and again 4 processes has the same weights, bit for bit, as one without a failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from onward.distributed.communicator import Communicator
from onward.distributed.exchange import DataParallel, as_tensor
from onward.distributed.fixed_scale import FixedScale
from onward.distributed.reproducible_sum import OrderedSum, add_in_order
from onward.errors import DistributedError, OptionError
from onward.programs.batch_rows import even_part
from onward.programs.program import LOSS, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining

Array = np.ndarray[Any, Any]


class LogicalShards:
    """Computes the gradients of this process's parts of a batch, and adds those of all in order."""

    def __init__(
        self,
        engine: SegmentedTraining,
        exchange: DataParallel,
        communicator: Communicator,
        layout: Layout,
        parts: int,
    ) -> None:
        if parts < communicator.size:
            raise OptionError(
                f"Parallel: {parts} logical shards are too few for {communicator.size} processes\n"
                f"give at least {communicator.size}, and the same number in every run"
            )
        self._engine, self._exchange = engine, exchange
        self._communicator, self._layout = communicator, layout
        self._parts, self._sum = parts, OrderedSum(communicator, parts)
        self.own = self._sum.shards_of(communicator.rank)

    def compute(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> tuple[Results, bool] | None:
        """Gradients of the whole batch, added to those of earlier micro-batches.

        Returns the results of this process's rows with the loss of all, and if all losses are
        finite; None if no process has a row.
        """
        parts, weights = self._cut(feeds)
        if not sum(weights):
            return None
        engine, total = self._engine, sum(weights)
        divisor = self._layout.weight.total(total)
        held = [] if first else [as_tensor(g).clone() for g in engine.store.gradient_buffers()]
        computed, statistics, found = [], [], []
        losses = [0.0] * self._parts
        for number, part in zip(self.own, parts):
            factor = weights[number] / divisor
            own = draw._replace(micro=draw.micro * self._parts + number)
            hooks = FixedScale(scale * factor)
            results = engine.run_forward_segments(part, own, True, hooks)
            if results is None:
                results = engine.skip_forward_segments(hooks)
                engine.skip_backward_segments(True, hooks)
            else:
                losses[number] = float(results[LOSS]) * factor
                engine.run_backward_segments(True, hooks)
            computed.append([as_tensor(g).clone() for g in engine.store.gradient_buffers()])
            share = weights[number] / total
            statistics.append([as_tensor(s) * share for s in engine.fresh_statistics()])
            found.append(results)
        self._add(computed, statistics)
        for buffer, before in zip(engine.store.gradient_buffers(), held):
            as_tensor(buffer).add_(before)
        self._exchange.is_reduced = True
        everywhere = self._gather(losses)
        finite = all(map(math.isfinite, everywhere))
        engine.keep_statistics(finite)
        loss = np.asarray(_sum_in_order(everywhere), self._layout.settings.loss_dtype)
        return {**_joined(found), LOSS: loss}, finite

    def _cut(self, feeds: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[float]]:
        """This process's parts of the batch, and the weights of all parts."""
        rows = self._layout.weight.rows(feeds)
        counts = torch.zeros(self._communicator.size, dtype=torch.int64)
        counts[self._communicator.rank] = rows
        self._communicator.all_reduce(counts).wait()
        whole = int(counts.sum())
        wanted = [len(even_part(whole, self._parts, number)) for number in self.own]
        if sum(wanted) != rows:
            raise DistributedError(
                f"process {self._communicator.rank} has {rows} of {whole} rows, but "
                f"its logical shards {[*self.own]} have {sum(wanted)}\n"
                "give each process the rows of its shards: onward.distributed.rows_of_process"
            )
        starts = np.cumsum([0, *wanted]).tolist()
        parts = [
            {name: _rows_of(feed, rows, start, stop) for name, feed in feeds.items()}
            for start, stop in pairwise(starts)
        ]
        own = {n: self._layout.weight.of(part) for n, part in zip(self.own, parts)}
        return parts, self._gather([own.get(number, 0.0) for number in range(self._parts)])

    def _gather(self, numbers: Sequence[float]) -> list[float]:
        """A number of each part, of all processes: each is given by one, the others give 0."""
        vector = torch.tensor(numbers, dtype=torch.float64)
        self._communicator.all_reduce(vector).wait()
        return [float(number) for number in vector.tolist()]

    def _add(self, computed: list[list[Any]], statistics: list[list[Any]]) -> None:
        """Write the sums over all parts to the engine's gradients and statistics."""
        engine = self._engine
        works = []
        for i, buffer in enumerate(engine.store.gradient_buffers()):
            vectors = [part[i] for part in computed]
            works.append(self._sum.reduce(vectors, as_tensor(buffer)))
        for i, fresh in enumerate(engine.fresh_statistics()):
            vectors = [part[i].reshape(-1) for part in statistics]
            works.append(self._sum.reduce(vectors, as_tensor(fresh).view(-1)))
        for work in works:
            work.wait()


def _rows_of(feed: Any, rows: int, start: int, stop: int) -> Any:
    """Some rows of a feed; a feed without rows of its own as it is."""
    shape = np.shape(feed)
    return feed[start:stop] if shape and shape[0] == rows else feed


def _sum_in_order(numbers: Sequence[float]) -> float:
    return float(add_in_order(torch.tensor(numbers, dtype=torch.float64)))


def _joined(results: Sequence[Results]) -> dict[str, Any]:
    """The results of several parts as those of one batch, where they have rows."""
    if len(results) == 1:
        return dict(results[0])
    joined = {}
    for name in results[0]:
        arrays = [np.asarray(each[name]) for each in results]
        joined[name] = np.concatenate(arrays) if arrays[0].ndim else arrays[0]
    return joined
