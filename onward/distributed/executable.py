"""DistributedTraining: a training program on many processes, each with its part of every batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onward.distributed.exchange import Exchange
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.process_groups import ProcessGroups
from onward.programs.batch_weights import BatchWeight
from onward.programs.program import LOSS, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining, Store


class DistributedTraining:
    """A TrainingExecutable around an engine that runs segments.

    `origins` says for each bucket of the engine which update of the session it was cut from.
    """

    lookahead = 1

    def __init__(
        self,
        engine: SegmentedTraining,
        exchange: Exchange,
        groups: ProcessGroups,
        layout: Layout,
        origins: Sequence[int],
        logical: LogicalShards | None = None,
    ) -> None:
        self._engine, self._exchange, self._groups = engine, exchange, groups
        self._layout, self._origins = layout, origins
        self._logical = logical
        self._accumulate = layout.settings.accumulate
        self._is_reduced = False
        self._share: BatchShare | None = None  # of the forward pass that `backward` follows
        self._loss: Any = None  # of the last batch, of all processes
        self._loss_finite = True  # whether the losses of all processes were, since the last update

    @property
    def store(self) -> Store:
        return self._engine.store

    @property
    def finite(self) -> bool:
        return self._engine.finite

    @finite.setter
    def finite(self, finite: bool) -> None:
        self._engine.finite = finite

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._engine.set_rates(steps, [rates[origin] for origin in self._origins])

    # -- training ------------------------------------------------------------------------------

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[Results, bool] | None:
        results = self.compute_gradients(feeds, draw, scale, first=True)
        return None if results is None else (results, self.update(1, scale))

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        if self._logical is not None:
            return self._compute_logical(feeds, draw, scale, first)
        whole = self._groups.whole
        reduces = draw.micro + 1 >= self._accumulate
        share = BatchShare(self._groups, self._layout.weight, feeds)
        hooks = _Hooks(self._exchange, share, scale, draw.micro + 1 if reduces else 0)
        own = draw._replace(micro=draw.micro * whole.size + whole.rank)
        results = self._engine.run_segments(feeds, own, first, hooks)
        if results is None:
            if not share.parts():
                return None
            results = self._engine.skip_segments(first, hooks)
        self._is_reduced = reduces
        loss = float(results[LOSS]) if share.own else 0.0 if share.total() else math.nan
        self._loss_finite = self._loss_finite and self._end_batch(share, loss)
        return {**results, LOSS: self._loss}

    def _compute_logical(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        assert self._logical is not None
        found = self._logical.compute(feeds, draw, scale, first)
        if found is None:
            return None
        results, finite = found
        self._is_reduced, self._loss_finite = True, self._loss_finite and finite
        return results

    def _end_batch(self, share: BatchShare, loss: float) -> bool:
        """Sum the loss and the statistics over the processes; whether all losses are finite."""
        whole = self._groups.whole
        fresh = self._engine.fresh_statistics()
        ends = [loss * share.factor() if math.isfinite(loss) else 0.0, not math.isfinite(loss)]
        numbers = torch.tensor(ends, dtype=torch.float64)
        works = [whole.all_reduce(numbers)]
        for statistics in map(torch.as_tensor, fresh):
            statistics.nan_to_num_().mul_(share.of_statistics())
            works.append(whole.all_reduce(statistics))
        for work in works:
            work.wait()
        finite = not numbers[1]
        self._engine.keep_statistics(finite)
        dtype = self._layout.settings.loss_dtype
        self._loss = numbers[0].numpy().astype(dtype) if finite else np.full((), math.nan, dtype)
        return finite

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        whole = self._groups.whole
        own = draw._replace(micro=draw.micro * whole.size + whole.rank)
        self._share = BatchShare(self._groups, self._layout.weight, feeds)
        return self._engine.forward(feeds, own)

    def backward(self, scale: float, first: bool) -> None:
        factor = 1.0 if self._share is None else self._share.factor()
        self._engine.backward(scale * factor, first)
        self._share, self._is_reduced = None, False

    def gradients_changed(self) -> None:
        self._engine.gradients_changed()

    def update(self, micro: int, scale: float) -> bool:
        if not self._is_reduced:
            for update in range(len(self._origins)):
                self._exchange.reduce(update, scale * micro)
        self._exchange.finish()
        self._engine.gradients_changed()
        self._engine.finite = finite = bool(self._engine.finite) and self._loss_finite
        if not finite:
            self._exchange.undo()
        self._is_reduced, self._loss_finite = False, True
        return bool(self._engine.update(micro, scale))

    def gradient_norm(self) -> float:
        return self._engine.gradient_norm()

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        return self._engine.evaluate(feeds)

    def predict(self, feeds: Mapping[str, Any]) -> Results:
        return self._engine.predict(feeds)


class BatchShare:
    """The share that this process has in a batch; the sum is known after the forward pass."""

    def __init__(
        self, groups: ProcessGroups, weight: BatchWeight, feeds: Mapping[str, Any]
    ) -> None:
        self.own = weight.of(feeds)
        self._fed = float(not weight.is_empty(feeds))
        self._sum = torch.tensor([self.own, self._fed], dtype=torch.float64)
        self._work = groups.whole.all_reduce(self._sum)
        self._is_known = False

    def total(self) -> float:
        """The weight of the whole batch."""
        return self._sums()[0]

    def parts(self) -> float:
        """How many processes have rows of it."""
        return self._sums()[1]

    def factor(self) -> float:
        """This process's weight in the mean of all."""
        total = self.total()
        return self.own / total if total else 0.0

    def of_statistics(self) -> float:
        """This process's weight in the mean of statistics, where no label may count."""
        return self.factor() if self.total() else self._fed / max(self.parts(), 1.0)

    def _sums(self) -> tuple[float, float]:
        if not self._is_known:
            self._work.wait()
            self._is_known = True
        total, parts = self._sum.tolist()
        return total, parts


class _Hooks:
    """Reduces buckets between the segments of a step."""

    def __init__(
        self,
        exchange: Exchange,
        share: BatchShare,
        scale: float,
        micro: int,  # micro-batches of the gradients that are reduced; 0: they are not yet
    ) -> None:
        self._exchange, self._share, self._scale, self._micro = exchange, share, scale, micro

    def scale(self) -> float:
        return self._scale * self._share.factor()

    def after(self, update: int) -> None:
        if self._micro:
            self._exchange.reduce(update, self._scale * self._micro)
