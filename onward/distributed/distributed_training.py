"""DistributedTraining: a training program on many processes, each with its part of every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.distributed.exchange import Exchange
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.one_graph import OneGraph
from onward.distributed.process_groups import ProcessGroups
from onward.distributed.segmented_passes import SegmentedPasses
from onward.errors import OptionError
from onward.programs.program import Layout
from onward.providers.provider import Draw, Results, SegmentedTraining, Store


class DistributedTraining:
    """A TrainingExecutable around an engine that runs segments.

    `origins` says for each bucket of the engine which update of the session it was cut from, `way`
    how gradients are computed. A forward pass that is called alone always runs in segments.
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
        self._segments = SegmentedPasses(engine, exchange, groups, layout)
        self._way = way or self._segments
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
        return self._noted(self._way.compute(feeds, draw, scale, first))

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        if isinstance(self._way, LogicalShards):
            raise OptionError(
                "run_forward does not support logical_shards: its results would depend on the "
                "number of processes\ncall step, or open the session without logical_shards"
            )
        return self._noted(self._segments.forward(feeds, draw))

    def backward(self, scale: float, first: bool) -> None:
        self._segments.backward(scale, first)

    def _noted(self, found: tuple[Results, bool] | None) -> Results | None:
        """Results, after a note of whether their loss is finite."""
        if found is None:
            return None
        results, finite = found
        self._loss_finite = self._loss_finite and finite
        return results

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
