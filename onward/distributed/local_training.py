"""LocalTrainingExecutable: processes train separately, and average weights every few updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.distributed.engine_wrapper import EngineWrapper
from onward.distributed.exchange import as_tensor
from onward.distributed.kept_states import find_states, name_states
from onward.distributed.local_sgd import average_vectors
from onward.distributed.local_steps import LocalSteps, WeightAverager
from onward.distributed.process_groups import ProcessGroups
from onward.errors import FeedError
from onward.programs.program import Array, Layout
from onward.providers.provider import Draw, Flag, Results, Store, TrainingExecutable


class LocalTrainingExecutable(EngineWrapper):
    """A TrainingExecutable whose processes exchange only weights, every few updates.

    Whether an update is skipped is each process's own decision: all of them count their updates,
    those that were skipped included, and average after the same ones.
    """

    def __init__(
        self,
        engine: TrainingExecutable,
        local_steps: LocalSteps,
        groups: ProcessGroups,
        layout: Layout,
    ) -> None:
        super().__init__(engine, groups, layout)
        self._parameters = [as_tensor(each) for each in engine.store.parameter_buffers()]
        self._local_steps = local_steps
        self._averager: WeightAverager | None = None  # from the first update on

    @property
    def store(self) -> Store:
        return self._engine.store

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._engine.set_rates(steps, [ahead[:1] for ahead in rates])

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[Results, Flag] | None:
        self._open_averager()
        done = self._engine.step(feeds, self._own(draw), scale)
        if done is None:
            raise _no_rows()
        self._average()
        return done

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        results = self._engine.compute_gradients(feeds, self._own(draw), scale, first)
        if results is None:
            raise _no_rows()
        return results

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        results = self._engine.forward(feeds, self._own(draw))
        if results is None:
            raise _no_rows()
        return results

    def backward(self, scale: float, first: bool) -> None:
        self._engine.backward(scale, first)

    def gradients_changed(self) -> None:
        self._engine.gradients_changed()

    def update(self, micro: int, scale: float) -> Flag:
        self._open_averager()
        finite = self._engine.update(micro, scale)
        self._average()
        return finite

    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        return self._engine.evaluate(feeds)

    def predict(self, feeds: Mapping[str, Any]) -> Results:
        return self._engine.predict(feeds)

    def process_state(self) -> dict[str, Array]:
        states = [] if self._averager is None else [self._averager.state()]
        return name_states(self._groups.whole, type(self._local_steps).__name__, states)

    def restore_process_state(self, tensors: Mapping[str, Array]) -> None:
        kind = type(self._local_steps).__name__
        [state] = find_states(self._groups.whole, kind, 1, tensors)
        averager = self._local_steps.open(self._groups.whole, self._parameters) if state else None
        if averager is not None:
            averager.restore(state)
        self._averager = averager

    def _open_averager(self) -> WeightAverager:
        """The averager: it begins with the weights before the first update, set or restored."""
        if self._averager is None:
            self._averager = self._local_steps.open(self._groups.whole, self._parameters)
        return self._averager

    def _own(self, draw: Draw) -> Draw:
        whole = self._groups.whole
        return draw._replace(micro=draw.micro * whole.size + whole.rank)

    def _average(self) -> None:
        """Average weights and running statistics, if it is time."""
        if not self._open_averager().after_update(self._parameters):
            return
        for name in self._layout.state:
            statistics = as_tensor(self.store.read(name).copy())
            average_vectors(self._groups.whole, [statistics])
            self.store.write(name, statistics.numpy())


def _no_rows() -> FeedError:
    return FeedError(
        "a process without rows cannot take part in local steps\n"
        "give every process rows of each batch, or average gradients: local_steps=None"
    )
