"""The train graph in two halves: forward, which keeps what the backward needs, and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.scopes import ancestors, reads
from onward.passes.prune import drop_unused
from onward.sessions.training.engine import Engine
from onward.sessions.training.feeding import Feeds
from onward.sessions.training.program import LOSS, MEASURE, NOISE, Array, TrainingProgram
from onward.sessions.training.state import State


class Halves:
    """Forward and backward as graphs of their own; what crosses from one to the other is held."""

    def __init__(
        self, program: TrainingProgram, state: State, open_it: Callable[[bytes], Engine]
    ) -> None:
        results = [LOSS, *program.outputs, *program.state.values()]
        gradients = [*(p.gradient for p in program.parameters), MEASURE]
        first, second, self._crossing = halves(program.train, results, gradients)
        self._forward, self.engine = open_it(first), open_it(second)
        self.feeds = Feeds(self._forward, program, state, partial=True)
        self._again = Feeds(self.engine, program, state, partial=True)
        self._program = program
        self.ready = False

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Bind the feeds to the halves that read them."""
        self.feeds.bind(feeds)
        self._again.bind(feeds)

    def draw(self, noise: Array) -> None:
        """Bind the random numbers to the halves that read them."""
        for engine in (self._forward, self.engine):
            if any(argument.name == NOISE for argument in engine.arguments()):
                engine.bind_input(NOISE, noise)

    def forward(self, loss: Array, fresh: dict[str, Array]) -> dict[str, Array]:
        """Run the first half."""
        self._forward.bind_output(LOSS, loss)
        for kept, output in self._program.state.items():
            self._forward.bind_output(output, fresh[kept])
        names = [*self._program.outputs, *self._crossing]
        found = dict(zip(names, self.feeds.run(names)))
        for name in self._crossing:
            self.engine.bind_input(name, found[name])
        self.ready = True
        return {LOSS: loss.copy(), **{name: found[name] for name in self._program.outputs}}

    def backward(self, measure: Array) -> None:
        """Run the second half; it can be run once for each forward."""
        self.engine.bind_output(MEASURE, measure)
        self.engine.run()
        self.ready = False


def halves(
    graph: bytes, results: list[str], gradients: list[str]
) -> tuple[bytes, bytes, list[str]]:
    """The graph up to its results, the rest of it, and the names of what the rest takes from it."""
    forward = ir.from_proto(onnx.load_from_string(graph))
    backward = forward.clone()
    outputs = {str(value.name): value for value in forward.graph.outputs}
    before = ancestors(forward.graph, [outputs[name] for name in results])
    first = [node for node in forward.graph if any(value in before for value in node.outputs)]
    later = set(forward.graph) - set(first)
    read = {value for node in later for value in reads(node)}
    made = [value for node in first for value in node.outputs]
    crossing = [value for value in made if value in read]
    names = [str(value.name) for value in crossing]
    forward.graph.outputs[:] = dict.fromkeys([*(outputs[name] for name in results), *crossing])
    _feed(backward, names)
    backward.graph.outputs[:] = [v for v in backward.graph.outputs if v.name in gradients]
    return _finished(forward), _finished(backward), names


def _feed(model: ir.Model, names: list[str]) -> None:
    """Turn values that nodes make into inputs."""
    made = {str(value.name): value for node in model.graph for value in node.outputs}
    for name in names:
        value = made[name]
        fed = ir.val(name, type=value.type, shape=value.shape)
        value.name = f"{name}.made"
        ir.convenience.replace_all_uses_with(value, fed)
        model.graph.inputs.append(fed)


def _finished(model: ir.Model) -> bytes:
    drop_unused(model)
    model.graph.inputs[:] = [v for v in model.graph.inputs if v.uses() or v.is_graph_output()]
    data: bytes = ir.to_proto(model).SerializeToString()
    return data
