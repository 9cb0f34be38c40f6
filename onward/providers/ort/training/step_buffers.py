"""StepBuffers: the arrays that the graphs of a step use in addition to those of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from onward.programs.program import DRAW, LOSS, SCALE, Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.finite_check import is_finite
from onward.providers.ort.training.lowered import NOISE, LoweredProgram
from onward.providers.ort.training.step_feeds import UniformNoise
from onward.providers.provider import Draw


class Bindable(Protocol):
    """A graph, or segments of one, whose inputs and outputs are bound to arrays."""

    def arguments(self) -> Sequence[Any]: ...

    def bind_input(self, name: str, array: Array) -> None: ...

    def bind_output(self, name: str, array: Array) -> None: ...


class StepBuffers:
    """Loss, new statistics, loss scale and random numbers of a step.

    Attributes:
        loss: of the last batch
        measure: of its gradients, if the graph computes one (`MEASURE`)
        scale: the loss scale
        updated: whether a fused step has updated
        fresh: the new statistics by name, before they are kept
    """

    def __init__(
        self,
        program: LoweredProgram,
        statistics: Mapping[str, Array],
        open_graph: Callable[[bytes], BoundGraph],
    ) -> None:
        self._layout, self._statistics = program.layout, statistics
        self.loss = np.zeros((), program.layout.settings.loss_dtype)
        self.measure = np.zeros((), np.float32)
        self.scale = np.ones((), program.layout.settings.loss_dtype)
        self.updated = np.zeros((), np.bool_)
        self.fresh = {name: np.empty_like(tensor) for name, tensor in statistics.items()}
        self._noise = UniformNoise(program, open_graph)
        self._position = np.zeros(3, np.int64)  # of the random numbers that a graph draws itself
        self._is_position_read = False

    def bind(self, graph: Bindable) -> None:
        """Bind the loss, the new statistics, and the inputs that only some programs have."""
        graph.bind_output(LOSS, self.loss)
        for kept, output in self._layout.state.items():
            graph.bind_output(output, self.fresh[kept])
        names = {argument.name for argument in graph.arguments()}
        if SCALE in names:
            graph.bind_input(SCALE, self.scale)
        if DRAW in names:
            graph.bind_input(DRAW, self._position)
            self._is_position_read = True

    def draw(self, graph: Bindable, feeds: Mapping[str, Any], draw: Draw) -> None:
        """Give a graph the random numbers of a batch, or the position to draw them from."""
        if self._noise.needed:
            graph.bind_input(NOISE, self._noise.draw(feeds, draw))
        if self._is_position_read:
            self._position[...] = draw

    def results(self, others: Sequence[Array]) -> dict[str, Array]:
        """The loss and the other outputs by name."""
        return {LOSS: self.loss.copy(), **dict(zip(self._layout.outputs, others))}

    def is_fresh_finite(self) -> bool:
        """Whether the new statistics are finite: a variance may overflow where no gradient does."""
        return all(map(is_finite, self.fresh.values()))

    def keep_statistics(self) -> None:
        """Copy the new statistics to those of the store."""
        for name, fresh in self.fresh.items():
            np.copyto(self._statistics[name], fresh)
