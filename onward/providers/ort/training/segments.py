"""Segments: the train graph cut into graphs that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import onnx
import onnx_ir as ir

from onward.gradients.split import split
from onward.programs.forward_segments import cut_forward
from onward.programs.program import Array, Layout
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.lowered import NOISE
from onward.providers.ort.training.part_store import NumpyPartStore
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore

Groups = Sequence[Sequence[str]]  # the results of each segment


class Segments:
    """Graphs of the forward pass, then of the backward pass, with the tensors that pass on.

    `results` are shown after the forward pass, in addition to those that are bound. Where the store
    holds whole parameters only for some time, the forward pass is cut, too, and each graph is bound
    to the vectors that are held when it runs.
    """

    def __init__(
        self,
        graph: bytes,
        layout: Layout,
        store: NumpyStore | NumpyPartStore,
        open_graph: Callable[[bytes], BoundGraph],
        results: Sequence[str],
        shown: Sequence[str],
        backward: Groups = (),
    ) -> None:
        model = ir.from_proto(onnx.load_from_string(graph))
        forward, bucket_of = [list(results)], {}
        self._parts = store if _is_sharded(store) else None
        if self._parts is not None:
            buckets = self._parts.sharding.buckets
            bucket_of = {n: i for i, each in enumerate(buckets) for n in each.update.parameters}
            forward = cut_forward(model, results, bucket_of, [each.bytes for each in buckets])
        pieces = split(model, [*forward, *backward])
        self.forward = range(len(forward))
        self.backward = range(len(forward), len(pieces))
        self._shown = shown
        self._takes = [piece.takes for piece in pieces]
        self._last_reader = {name: i for i, takes in enumerate(self._takes) for name in takes}
        self.graphs = [open_graph(ir.to_proto(piece.model).SerializeToString()) for piece in pieces]
        self._feeds = [StepFeeds(each, layout, store, partial=True) for each in self.graphs]
        self._home = {
            result.name: graph for graph in reversed(self.graphs) for result in graph.results()
        }
        self._arguments = [{each.name for each in graph.arguments()} for graph in self.graphs]
        self.reads = [
            tuple(sorted({bucket_of[n] for n in names if n in bucket_of}))
            for names in self._arguments
        ]
        self._parameters: dict[tuple[int, int], Array] = {}  # graph, update -> the bound vector
        self._bound: dict[str, Array] = {}  # results in memory of the store
        self._values: dict[str, Array] = {}  # results that later segments read
        self.is_ready = False  # whether a forward pass waits for its backward pass

    @property
    def is_empty(self) -> bool:
        """Whether the bound batch is empty."""
        return any(self._feeds[i].is_empty for i in self.forward)

    def bind_feeds(self, feeds: Mapping[str, Any]) -> None:
        """Bind the feeds to the graphs that read them."""
        for each in self._feeds:
            each.bind(feeds)

    def bind_noise(self, noise: Array) -> None:
        """Bind the random numbers to the graphs that read them."""
        self.bind_input(NOISE, noise)

    def bind_input(self, name: str, array: Array) -> bool:
        """Bind an input of all graphs that have it; whether there is one."""
        readers = [g for g, known in zip(self.graphs, self._arguments) if name in known]
        for graph in readers:
            graph.bind_input(name, array)
        return bool(readers)

    def bind_output(self, name: str, array: Array) -> None:
        """Bind a result to an array that the run of its graph writes to."""
        self._home[name].bind_output(name, array)
        self._bound[name] = array

    def results_of_empty(self, names: Sequence[str]) -> list[Array]:
        """Results of the empty batch that is bound."""
        found: dict[str, Array] = {}
        for i in self.forward:
            own = [r.name for r in self.graphs[i].results() if r.name in names]
            found |= zip(own, self._feeds[i].results_of_empty(own))
        return [found[name] for name in names]

    def run(self, i: int) -> None:
        """Run a segment; the next ones find its results."""
        graph = self.graphs[i]
        self._bind_parameters(i)
        for name in self._takes[i]:
            graph.bind_input(name, self._bound[name] if name in self._bound else self._values[name])
        wanted = [
            result.name
            for result in graph.results()
            if result.name not in self._bound and self._is_read_after(result.name, i)
        ]
        self._values |= zip(wanted, self._feeds[i].run(wanted))
        for name in self._takes[i]:
            if self._last_reader[name] == i and name not in self._shown:
                self._values.pop(name, None)
        self.is_ready = i + 1 < len(self.graphs)

    def _bind_parameters(self, i: int) -> None:
        """Bind a graph to the vectors of parameters that are held now."""
        for update in self.reads[i]:
            assert self._parts is not None
            vector, places = self._parts.hold_parameters(update), self._parts.places(update)
            if self._parameters.get((i, update)) is not vector:
                for name in self._arguments[i] & places.slices.keys():
                    view = vector[places.slices[name]].reshape(places.shapes[name])
                    self.graphs[i].bind_input(name, view)
                self._parameters[i, update] = vector

    def _is_read_after(self, name: str, i: int) -> bool:
        return name in self._shown or self._last_reader.get(name, -1) > i

    def shown(self) -> list[Array]:
        """The outputs of the program, after the forward pass; they are not kept."""
        kept = {name for name, last in self._last_reader.items() if last in self.backward}
        found = [self._values[name] for name in self._shown]
        for name in self._shown:
            if name not in kept:
                self._values.pop(name, None)
        return found


def _is_sharded(store: NumpyStore | NumpyPartStore) -> TypeGuard[NumpyPartStore]:
    """Whether whole parameters are there only for some time."""
    return isinstance(store, NumpyPartStore) and not store.sharding.has_whole_parameters
