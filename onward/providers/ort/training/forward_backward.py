"""Split the train graph into forward and backward, which run separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onward.gradients.split import split
from onward.programs.program import LOSS, Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.lowered import MEASURE, NOISE, LoweredProgram
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore


class ForwardBackward:
    """Forward and backward as two graphs, with the tensors that pass between them."""

    def __init__(
        self,
        program: LoweredProgram,
        store: NumpyStore,
        open_graph: Callable[[bytes], BoundGraph],
    ) -> None:
        layout = program.layout
        results = [LOSS, *layout.outputs, *layout.state.values()]
        gradients = [*(p.gradient for p in layout.parameters), MEASURE]
        train = ir.from_proto(onnx.load_from_string(program.train))
        first, second = split(train, [results, gradients])
        self._crossing = second.takes
        self.forward, self.backward = (
            open_graph(ir.to_proto(each.model).SerializeToString()) for each in (first, second)
        )
        self._feeds = [
            StepFeeds(graph, layout, store, partial=True) for graph in (self.forward, self.backward)
        ]
        self._outputs = layout.outputs
        self.is_ready = False

    @property
    def is_empty(self) -> bool:
        """Whether the bound batch is empty."""
        return self._feeds[0].is_empty

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Bind the feeds to the graphs that read them."""
        for each in self._feeds:
            each.bind(feeds)

    def draw(self, noise: Array) -> None:
        """Bind the random numbers to the graphs that read them."""
        for graph in (self.forward, self.backward):
            if any(argument.name == NOISE for argument in graph.arguments()):
                graph.bind_input(NOISE, noise)

    def run_forward(self) -> list[Array]:
        """Run the forward graph. Returns the outputs of the program."""
        names = [*self._outputs, *self._crossing]
        found = dict(zip(names, self._feeds[0].run(names)))
        for name in self._crossing:
            self.backward.bind_input(name, found[name])
        self.is_ready = True
        return [found[name] for name in self._outputs]

    def run_backward(self) -> None:
        """Run the backward graph, once for each forward."""
        self.backward.run()
        self.is_ready = False
