"""OneGraph: computes the gradients of a batch in one run of one graph, then all-reduces them.

Engines run one graph faster than segments, between which gradients are all-reduced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from onward.distributed.communicator import Communicator, Work
from onward.distributed.exchange import DataParallel, as_tensor
from onward.distributed.fixed_scale import FixedScale
from onward.programs.program import LOSS, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining


class OneGraph:
    """Computes gradients where every process has all tensors, and the model has no statistics.

    The total weight of a batch is assumed to be that of the last one, so that weight, loss and
    gradients are all-reduced at the same time. If that was wrong, the summed gradients are
    rescaled. Gradients that are accumulated or compressed need the true weight before.
    """

    def __init__(
        self,
        engine: SegmentedTraining,
        exchange: DataParallel,
        communicator: Communicator,
        layout: Layout,
    ) -> None:
        self._engine, self._exchange = engine, exchange
        self._communicator, self._layout = communicator, layout
        self._last_total = 0.0  # the weight of the last batch, of all processes

    def compute(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> tuple[Results, bool] | None:
        """Gradients of the whole batch, added to those of earlier micro-batches.

        Returns the results of this process's rows with the loss of all, and if all losses are
        finite; None if no process has a row.
        """
        last = draw.micro + 1 >= self._layout.settings.accumulate
        assumed = self._last_total if first and last and self._exchange.is_exact else 0.0
        weight = self._layout.weight
        own, has_rows = weight.of(feeds), float(not weight.is_empty(feeds))
        if assumed:
            total, filled = assumed, 1.0
        else:
            total, filled = self._sums(own, has_rows).wait()
        if not filled:
            return None
        replaces = self._exchange.begin_gradients(first, scale)
        divisor = weight.total(total)
        results = self._run(feeds, draw, scale * own / divisor if divisor else 0.0, replaces)
        loss = float(results[LOSS]) if own else 0.0
        loss_terms = (own * loss, 0.0) if math.isfinite(loss) else (0.0, 1.0)
        sums = self._sums(*loss_terms, *((own, has_rows) if assumed else ()))
        if last:
            self._exchange.start_reduction()
        loss, infinite, *weights = sums.wait()
        if weights:
            total, filled = weights
            self._correct(weight.total(assumed), weight.total(total))
        if not filled:
            return None
        self._last_total = total
        divisor = weight.total(total)
        loss = loss / divisor if divisor and not infinite else math.nan
        shown = np.asarray(loss, self._layout.settings.loss_dtype)
        return {**results, LOSS: shown}, math.isfinite(loss)

    def _run(self, feeds: Mapping[str, Any], draw: Draw, scale: float, replaces: bool) -> Results:
        """The results of this process's rows; without rows, its gradients stay as they are."""
        engine, own = self._engine, own_draw(draw, self._communicator)
        results = engine.compute_gradients(feeds, own, scale, first=replaces)
        if results is not None:
            return results
        hooks = FixedScale(scale)
        engine.run_forward_segments(feeds, own, replaces, hooks)  # reads their shapes
        results = engine.skip_forward_segments(hooks)
        if replaces:
            engine.store.clear_gradients()
        return results

    def _correct(self, assumed: float, total: float) -> None:
        """Rescale the summed gradients if the assumed total weight was wrong."""
        if assumed != total:
            self._exchange.reduce_all()
            for buffer in self._engine.store.gradient_buffers():
                as_tensor(buffer).mul_(assumed / total if total else 0.0)

    def _sums(self, *numbers: float) -> _Sums:
        """Start to all-reduce numbers."""
        vector = torch.tensor(numbers, dtype=torch.float64)
        return _Sums(vector, self._communicator.all_reduce(vector))


def own_draw(draw: Draw, communicator: Communicator) -> Draw:
    """What the random numbers of this process depend on."""
    return draw._replace(micro=draw.micro * communicator.size + communicator.rank)


class _Sums(NamedTuple):
    """An all-reduce in progress."""

    vector: torch.Tensor
    work: Work

    def wait(self) -> list[float]:
        self.work.wait()
        found: list[float] = self.vector.tolist()
        return found
