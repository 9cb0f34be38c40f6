"""Segments: the train graph cut into graphs that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.gradients.split import split
from onward.programs.program import Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.lowered import NOISE, LoweredProgram
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore

Groups = Sequence[Sequence[str]]  # the results of each segment


class Segments:
    """Graphs of the forward pass, then of the backward pass, with the tensors that pass on."""

    def __init__(
        self,
        program: LoweredProgram,
        store: NumpyStore,
        open_graph: Callable[[bytes], BoundGraph],
        forward: Groups,
        backward: Groups,
    ) -> None:
        layout = program.layout
        train = ir.from_proto(onnx.load_from_string(program.train))
        pieces = split(train, [*forward, *backward])
        self.forward = range(len(forward))
        self.backward = range(len(forward), len(pieces))
        self._shown = layout.outputs
        self._takes = [piece.takes for piece in pieces]
        self._last_reader = {name: i for i, takes in enumerate(self._takes) for name in takes}
        self.graphs = [open_graph(ir.to_proto(piece.model).SerializeToString()) for piece in pieces]
        self._feeds = [StepFeeds(each, layout, store, partial=True) for each in self.graphs]
        groups = [*forward, *backward]
        self._home = {name: i for i, group in enumerate(groups) for name in group}
        # results of a group that an earlier segment has computed: onnxruntime does not copy them
        self._passed = [
            [name for name in group if name in piece.takes] for group, piece in zip(groups, pieces)
        ]
        self._arguments = [{each.name for each in graph.arguments()} for graph in self.graphs]
        self._bound: dict[str, Array] = {}  # results in memory of the store
        self._values: dict[str, Array] = {}  # results that later segments read
        self.is_ready = False  # whether a forward pass waits for its backward pass

    @property
    def is_empty(self) -> bool:
        """Whether the bound batch is empty."""
        return self._feeds[0].is_empty

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
        home = self._home[name]
        if name not in self._passed[home]:
            self.graphs[home].bind_output(name, array)
        self._bound[name] = array

    def results_of_empty(self, names: Sequence[str]) -> list[Array]:
        """Results of the empty batch that is bound; `names` are results of the last forward."""
        return self._feeds[self.forward[-1]].results_of_empty(names)

    def run(self, i: int) -> None:
        """Run a segment; the next ones find its results."""
        graph = self.graphs[i]
        for name in self._takes[i]:
            graph.bind_input(name, self._values[name])
        names = [result.name for result in graph.results() if result.name not in self._takes[i]]
        bound = {name for name in names if name in self._bound and self._home[name] == i}
        wanted = [name for name in names if name not in bound and self._is_read_after(name, i)]
        self._values |= zip(wanted, self._feeds[i].run(wanted))
        for name in bound:  # its memory may be changed before later segments read it
            if self._is_read_after(name, i):
                self._values[name] = self._bound[name].copy()
        for name in self._passed[i]:
            if name in self._bound:
                np.copyto(self._bound[name], self._values[name])
        for name in self._takes[i]:
            if self._last_reader[name] == i and name not in self._shown:
                self._values.pop(name, None)
        self.is_ready = i + 1 < len(self.graphs)

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
