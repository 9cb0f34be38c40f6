"""SegmentedPasses: gradients in segments; each bucket is reduced while the next is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onward.distributed.communicator import Work
from onward.distributed.exchange import Exchange
from onward.distributed.one_graph import own_draw
from onward.distributed.process_groups import ProcessGroups
from onward.errors import OptionError
from onward.programs.batch_weights import BatchWeight
from onward.programs.program import LOSS, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining


class SegmentedPasses:
    """Computes gradients with a backward pass that is cut at the buckets."""

    def __init__(
        self, engine: SegmentedTraining, exchange: Exchange, groups: ProcessGroups, layout: Layout
    ) -> None:
        self._engine, self._exchange = engine, exchange
        self._groups, self._layout = groups, layout
        self._pass: _ForwardPass | None = None  # that waits for its backward pass

    def compute(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> tuple[Results, bool] | None:
        """Gradients of the whole batch, added to those of earlier micro-batches.

        Returns the results of this process's rows with the loss of all, and if all losses are
        finite; None if no process has a row.
        """
        started = self._start(feeds, draw, first)
        if started is None:
            return None
        # an engine that runs ahead would wait for its forward pass to read the loss
        sums = self._start_sums(started) if self._engine.lookahead == 1 else None
        last = draw.micro + 1 >= self._layout.settings.accumulate
        self._run_backward(started, scale, first, last)
        return self._finish_sums(started, sums or self._start_sums(started))

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> tuple[Results, bool] | None:
        """The first half of `compute`: the results, and if all losses are finite."""
        self._pass = self._start(feeds, draw, first=False)
        if self._pass is None:
            return None
        return self._finish_sums(self._pass, self._start_sums(self._pass))

    def backward(self, scale: float, first: bool) -> None:
        """The gradients of the last forward pass."""
        if self._pass is None:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        self._run_backward(self._pass, scale, first, last=False)
        self._pass = None

    def _start(self, feeds: Mapping[str, Any], draw: Draw, first: bool) -> _ForwardPass | None:
        """Run the forward pass; None if the batch is empty in all processes."""
        share = _BatchShare(self._groups, self._layout.weight, feeds)
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

    def _finish_sums(self, started: _ForwardPass, sums: _BatchSums) -> tuple[Results, bool]:
        """Wait for the sums, and keep the statistics; the results, and if the loss is finite."""
        for work in sums.works:
            work.wait()
        finite = not bool(sums.numbers[1])
        self._engine.keep_statistics(finite)
        dtype, loss = self._layout.settings.loss_dtype, sums.numbers[0].numpy()
        shown = loss.astype(dtype) if finite else np.full((), math.nan, dtype)
        return {**started.results, LOSS: shown}, finite


@dataclass(frozen=True)
class _ForwardPass:
    """A forward pass that was run."""

    share: _BatchShare
    results: Results
    is_empty: bool  # in this process


@dataclass(frozen=True)
class _BatchSums:
    """Sums over the processes that were started: the loss, whether it is not finite, statistics."""

    numbers: torch.Tensor
    works: Sequence[Work]


class _BatchShare:
    """The share that this process has in a batch; the sum is known after the forward pass."""

    def __init__(
        self, groups: ProcessGroups, weight: BatchWeight, feeds: Mapping[str, Any]
    ) -> None:
        self.own = weight.of(feeds)
        self._weight = weight
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
        """This process's weight in the loss of all."""
        total = self._weight.total(self.total())
        return self.own / total if total else 0.0

    def of_statistics(self) -> float:
        """This process's weight in the mean of statistics, where no label may count."""
        total = self.total()
        return self.own / total if total else self._fed / max(self.parts(), 1.0)

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
    share: _BatchShare
    loss_scale: float = 1.0
    first: bool = True
    last: bool = False

    def before(self, segment: int) -> None:
        self.exchange.before(segment)

    def scale(self) -> float:
        return self.loss_scale * self.share.factor()

    def after(self, update: int) -> None:
        self.exchange.after(update, self.first, self.last)
