"""DistributedTraining: a training program on many processes, each with its part of every batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onward.distributed.communicator import Work
from onward.distributed.exchange import Exchange
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.one_graph import OneGraph, own_draw
from onward.distributed.process_groups import ProcessGroups
from onward.errors import OptionError
from onward.programs.batch_weights import BatchWeight
from onward.programs.program import LOSS, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining, Store


class DistributedTraining:
    """A TrainingExecutable around an engine that runs segments.

    `origins` says for each bucket of the engine which update of the session it was cut from. The
    backward pass is cut at the buckets, so that they are reduced while it goes on, unless `way` is
    another way to compute gradients.
    """

    lookahead = 1

    def __init__(
        self,
        engine: SegmentedTraining,
        exchange: Exchange,
        groups: ProcessGroups,
        layout: Layout,
        origins: Sequence[int],
        way: LogicalShards | OneGraph | None = None,
    ) -> None:
        self._engine, self._exchange, self._groups = engine, exchange, groups
        self._layout, self._origins = layout, origins
        self._way = way
        self._accumulate = layout.settings.accumulate
        self._pass: _ForwardPass | None = None  # that waits for its backward pass
        self._loss: Any = None  # of the last batch, of all processes
        self._loss_finite = True  # whether the losses of all processes were, since the last update

    @property
    def store(self) -> Store:
        return self._exchange.store

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
        if self._way is not None:
            return self._compute_otherwise(self._way, feeds, draw, scale, first)
        started = self._start(feeds, draw, first)
        if started is None:
            return None
        # an engine that runs ahead would wait for its forward pass to read the loss
        sums = self._start_sums(started) if self._engine.lookahead == 1 else None
        self._run_backward(started, scale, first, last=draw.micro + 1 >= self._accumulate)
        self._finish_sums(sums or self._start_sums(started))
        return {**started.results, LOSS: self._loss}

    def _compute_otherwise(
        self,
        way: LogicalShards | OneGraph,
        feeds: Mapping[str, Any],
        draw: Draw,
        scale: float,
        first: bool,
    ) -> Results | None:
        """Gradients by logical shards or one graph, which weight and sum them themselves."""
        found = way.compute(feeds, draw, scale, first)
        if found is None:
            return None
        results, finite = found
        self._loss_finite = self._loss_finite and finite
        return results

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        if isinstance(self._way, LogicalShards):
            raise OptionError(
                "run_forward does not support logical_shards: its results would depend on the "
                "number of processes\ncall step, or open the session without logical_shards"
            )
        self._pass = self._start(feeds, draw, first=False)
        if self._pass is None:
            return None
        self._finish_sums(self._start_sums(self._pass))
        return {**self._pass.results, LOSS: self._loss}

    def backward(self, scale: float, first: bool) -> None:
        if self._pass is None:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        self._run_backward(self._pass, scale, first, last=False)
        self._pass = None

    def _start(self, feeds: Mapping[str, Any], draw: Draw, first: bool) -> _ForwardPass | None:
        """Run the forward pass; None if the batch is empty in all processes."""
        share = BatchShare(self._groups, self._layout.weight, feeds)
        hooks = _Hooks(self._exchange, share)
        own = own_draw(draw, self._groups.whole)
        results = self._engine.run_forward_segments(feeds, own, first, hooks)
        if results is not None:
            return _ForwardPass(share, results, is_empty=False)
        if not share.parts():
            return None
        return _ForwardPass(share, self._engine.skip_forward_segments(hooks), is_empty=True)

    def _run_backward(self, started: _ForwardPass, scale: float, first: bool, last: bool) -> None:
        hooks = _Hooks(self._exchange, started.share, scale, first, last)
        replaces = self._exchange.begin_gradients(first, scale)
        if started.is_empty:
            self._engine.skip_backward_segments(replaces, hooks)
        else:
            self._engine.run_backward_segments(replaces, hooks)

    def _start_sums(self, started: _ForwardPass) -> _BatchSums:
        """Start to sum the loss and the statistics over the processes."""
        whole, share = self._groups.whole, started.share
        loss = 0.0 if share.total() else math.nan
        if share.own:
            loss = float(started.results[LOSS])
        ends = [loss * share.factor() if math.isfinite(loss) else 0.0, not math.isfinite(loss)]
        numbers = torch.tensor(ends, dtype=torch.float64)
        works = [whole.all_reduce(numbers)]
        for statistics in map(torch.as_tensor, self._engine.fresh_statistics()):
            statistics.nan_to_num_().mul_(share.of_statistics())
            works.append(whole.all_reduce(statistics))
        return _BatchSums(numbers, works)

    def _finish_sums(self, sums: _BatchSums) -> None:
        """Wait for the sums, and keep the statistics."""
        for work in sums.works:
            work.wait()
        finite = not sums.numbers[1]
        self._engine.keep_statistics(finite)
        dtype, loss = self._layout.settings.loss_dtype, sums.numbers[0].numpy()
        self._loss = loss.astype(dtype) if finite else np.full((), math.nan, dtype)
        self._loss_finite = self._loss_finite and finite

    def gradients_changed(self) -> None:
        pass  # they are looked at before each update

    def update(self, micro: int, scale: float) -> bool:
        self._exchange.finish_gradients(self._loss_finite)
        self._loss_finite = True
        finite = bool(self._engine.update(micro, scale))
        self._exchange.finish_update(finite or not self._layout.settings.skip_nonfinite)
        return finite

    def gradient_norm(self) -> float:
        return self._engine.gradient_norm()

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        return self._exchange.infer("evaluate", feeds)

    def predict(self, feeds: Mapping[str, Any]) -> Results:
        return self._exchange.infer("predict", feeds)


@dataclass(frozen=True)
class _ForwardPass:
    """A forward pass that was run."""

    share: BatchShare
    results: Results
    is_empty: bool  # in this process


@dataclass(frozen=True)
class _BatchSums:
    """Sums over the processes that were started: the loss, whether it is not finite, statistics."""

    numbers: torch.Tensor
    works: Sequence[Work]


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


@dataclass(frozen=True)
class _Hooks:
    """Combines buckets between the segments of a step."""

    exchange: Exchange
    share: BatchShare
    loss_scale: float = 1.0
    first: bool = True
    last: bool = False

    def before(self, segment: int) -> None:
        self.exchange.before(segment)

    def scale(self) -> float:
        return self.loss_scale * self.share.factor()

    def after(self, update: int) -> None:
        self.exchange.after(update, self.first, self.last)
