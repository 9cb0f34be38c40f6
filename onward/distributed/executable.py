"""DistributedTraining: a training program on many processes, each with its part of every batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onward.distributed.exchange import Exchange
from onward.distributed.process_groups import ProcessGroups
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
    ) -> None:
        self._engine, self._exchange, self._groups = engine, exchange, groups
        self._layout, self._origins = layout, origins
        self._accumulate = layout.settings.accumulate
        self._is_reduced = False
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

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to others."""
        groups = (self._groups.whole, self._groups.shards, self._groups.copies)
        return sum(each.sent.total() for each in dict.fromkeys(groups))

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
        whole = self._groups.whole
        reduces = draw.micro + 1 >= self._accumulate
        share = BatchShare(self._groups, self._layout.weight.of(feeds))
        hooks = _Hooks(self._exchange, share, scale, reduces)
        own = draw._replace(micro=draw.micro * whole.size + whole.rank)
        results = self._engine.run_segments(feeds, own, first, hooks)
        if results is None:
            if not share.total():
                return None
            if first:
                self._engine.store.clear_gradients()
            results = self._engine.results_of_empty()
            for update in range(len(self._origins)):
                hooks.after(update)
        self._is_reduced = reduces
        loss = float(results[LOSS]) if share.own else 0.0
        self._loss_finite = self._loss_finite and self._end_batch(share, loss)
        return {**results, LOSS: self._loss}

    def _end_batch(self, share: BatchShare, loss: float) -> bool:
        """Sum the loss and the statistics over the processes; whether all losses are finite."""
        whole = self._groups.whole
        fresh = self._engine.fresh_statistics()
        ends = [loss * share.factor() if math.isfinite(loss) else 0.0, not math.isfinite(loss)]
        numbers = torch.tensor(ends, dtype=torch.float64)
        works = [whole.all_reduce(numbers)]
        for statistics in map(torch.as_tensor, fresh):
            statistics.nan_to_num_().mul_(share.factor())
            works.append(whole.all_reduce(statistics))
        for work in works:
            work.wait()
        finite = not numbers[1]
        self._engine.keep_statistics(finite)
        dtype = self._layout.settings.loss_dtype
        self._loss = numbers[0].numpy().astype(dtype) if finite else np.full((), math.nan, dtype)
        return finite

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        return self._engine.forward(feeds, draw)

    def backward(self, scale: float, first: bool) -> None:
        self._engine.backward(scale, first)
        self._is_reduced = False

    def gradients_changed(self) -> None:
        self._engine.gradients_changed()

    def update(self, micro: int, scale: float) -> bool:
        if not self._is_reduced:
            for update in range(len(self._origins)):
                self._exchange.reduce(update)
        self._exchange.finish()
        self._engine.gradients_changed()
        self._engine.finite = bool(self._engine.finite) and self._loss_finite
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

    def __init__(self, groups: ProcessGroups, own: float) -> None:
        self.own = own
        self._sum = torch.tensor([own], dtype=torch.float64)
        self._work = groups.whole.all_reduce(self._sum)
        self._is_known = False

    def total(self) -> float:
        """The weight of the whole batch."""
        if not self._is_known:
            self._work.wait()
            self._is_known = True
        return float(self._sum)

    def factor(self) -> float:
        """This process's weight in the mean of all."""
        total = self.total()
        return self.own / total if total else 0.0


class _Hooks:
    """Reduces buckets between the segments of a step."""

    def __init__(self, exchange: Exchange, share: BatchShare, scale: float, reduces: bool) -> None:
        self._exchange, self._share, self._scale, self._reduces = exchange, share, scale, reduces

    def scale(self) -> float:
        return self._scale * self._share.factor()

    def after(self, update: int) -> None:
        if self._reduces:
            self._exchange.reduce(update)
