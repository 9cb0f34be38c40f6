"""DistributedTraining: a training program on many processes, each with its part of every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.distributed.engine_wrapper import EngineWrapper
from onward.distributed.exchange import DataParallel, Exchange
from onward.distributed.logical_shards import LogicalShards
from onward.distributed.one_graph import OneGraph
from onward.distributed.process_groups import ProcessGroups
from onward.distributed.segmented_passes import SegmentedPasses
from onward.errors import OptionError
from onward.programs.program import Array, Layout
from onward.providers.provider import Draw, Results, SegmentedTraining, Store


class DistributedTraining(EngineWrapper):
    """A TrainingExecutable around an engine that runs segments.

    `origins` says for each bucket of the engine which update of the session it was cut from.
    `gradient_method` computes the gradients; None: in segments, as a forward pass that is called
    by itself always does.
    """

    def __init__(
        self,
        engine: SegmentedTraining,
        exchange: Exchange,
        groups: ProcessGroups,
        layout: Layout,
        origins: Sequence[int],
        gradient_method: LogicalShards | OneGraph | None = None,
    ) -> None:
        super().__init__(engine, groups, layout)
        self._exchange, self._origins = exchange, origins
        self._segments = SegmentedPasses(engine, exchange, groups, layout)
        self._gradient_method = gradient_method or self._segments
        self._loss_finite = True  # whether the losses of all processes were, since the last update

    @property
    def store(self) -> Store:
        return self._exchange.store

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._engine.set_rates(steps, [rates[origin] for origin in self._origins])

    @property
    def finite(self) -> bool:
        """Whether the accumulated gradients and the losses that they are of are finite."""
        return bool(self._engine.finite) and self._loss_finite

    @finite.setter
    def finite(self, finite: bool) -> None:
        self._engine.finite = self._loss_finite = finite

    # -- training ------------------------------------------------------------------------------

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[Results, bool] | None:
        results = self.compute_gradients(feeds, draw, scale, first=True)
        return None if results is None else (results, self.update(1, scale))

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        return self._noted(self._gradient_method.compute(feeds, draw, scale, first))

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        if isinstance(self._gradient_method, LogicalShards):
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

    # -- checkpoints ---------------------------------------------------------------------------

    def process_state(self) -> dict[str, Array]:
        exchange = self._exchange
        return exchange.process_state() if isinstance(exchange, DataParallel) else {}

    def restore_process_state(self, tensors: Mapping[str, Array]) -> None:
        if isinstance(self._exchange, DataParallel):
            self._exchange.restore_process_state(tensors)

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        return self._exchange.infer("evaluate", feeds)

    def predict(self, feeds: Mapping[str, Any]) -> Results:
        return self._exchange.infer("predict", feeds)
