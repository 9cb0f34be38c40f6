"""Segments: the train graph cut into graphs that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir

from onward.programs.forward_segments import cut_forward
from onward.programs.program import Array, Layout, SharedSum
from onward.programs.shared_sums import split_at_sums
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.part_store import NumpyPartStore
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore

Groups = Sequence[Sequence[str]]  # the results of each segment


AllReduce = Callable[[Array], None]  # sums an array over processes, in place


class Segments:
    """Graphs of the forward pass, then of the backward pass, with the tensors that pass on.

    A segment is one graph, or several with a sum over processes after each but the last. `results`
    are those of the forward pass, of which those `shown` are not bound. Where the store holds whole
    parameters only for some time, the forward pass is cut, too, and each graph is bound to the
    vectors that are held when it runs.
    """

    def __init__(
        self,
        data: bytes,
        layout: Layout,
        store: NumpyStore | NumpyPartStore,
        open_graph: Callable[[bytes], BoundGraph],
        results: Sequence[str],
        shown: Sequence[str],
        backward: Groups = (),
        sums: Sequence[SharedSum] = (),
        all_reduce: AllReduce | None = None,
    ) -> None:
        model = ir.from_proto(onnx.load_from_string(data))
        forward, bucket_of = [list(results)], {}
        self._parts = store if _is_sharded(store) else None
        if self._parts is not None:
            buckets = self._parts.sharding.buckets
            bucket_of = {n: i for i, each in enumerate(buckets) for n in each.update.parameters}
            forward = cut_forward(model, results, bucket_of, [each.bytes for each in buckets])
        segments = split_at_sums(model, [*forward, *backward], sums)
        self.forward = range(len(forward))
        self.backward = range(len(forward), len(segments))
        self._all_reduce = all_reduce
        self._shown = shown
        cuts = [each for segment in segments for each in segment]
        self._ends = list(accumulate(map(len, segments)))  # of each segment, in `graphs`
        self._sums: list[SharedSum | None] = [each.sum for each in cuts]
        pieces = [each.piece for each in cuts]
        self._takes = [piece.takes for piece in pieces]
        self._last_reader = {name: i for i, takes in enumerate(self._takes) for name in takes}
        self.graphs = [open_graph(ir.to_proto(piece.model).SerializeToString()) for piece in pieces]
        self._feeds = [StepFeeds(each, layout, store, partial=True) for each in self.graphs]
        self._home: dict[str, int] = {}  # the first graph that returns a result
        for i, graph in enumerate(self.graphs):
            for result in graph.results():
                self._home.setdefault(result.name, i)
        self._is_run = [  # not where all results were made before, such as gradients of one loop
            any(self._home[result.name] == i for result in graph.results())
            for i, graph in enumerate(self.graphs)
        ]
        self._arguments = [{each.name for each in graph.arguments()} for graph in self.graphs]
        self._updates_read = [
            {bucket_of[name] for name in names if name in bucket_of} for names in self._arguments
        ]
        self.reads = [  # the updates whose parameters each segment reads
            tuple(sorted(set().union(*(self._updates_read[graph] for graph in self._graphs_of(i)))))
            for i in range(len(segments))
        ]
        self._parameters: dict[tuple[int, int], Array] = {}  # graph, update -> the bound vector
        self._bound: set[str] = set()  # results in memory of the store
        self._late: list[dict[str, Array]] = [{} for _ in segments]  # results of earlier segments
        self._copied: list[dict[str, Array]] = [{} for _ in self.graphs]  # and read later
        self._values: dict[str, Array] = {}  # results that later segments read
        self._last_forward = self._ends[len(forward) - 1] - 1  # the last graph of the forward pass
        self._totals = {each.part: np.zeros(each.size, each.dtype) for each in sums}
        for each in sums:  # in place: what this process adds becomes the sum
            self.bind_output(each.part, self._totals[each.part])
            self.bind_input(each.total, self._totals[each.part])
        self.is_ready = False  # whether a forward pass waits for its backward pass

    @property
    def is_empty(self) -> bool:
        """Whether the bound batch is empty."""
        return any(each.is_empty for each in self._feeds)

    def bind_feeds(self, feeds: Mapping[str, Any]) -> None:
        """Bind the feeds to the graphs that read them."""
        for each in self._feeds:
            each.bind(feeds)

    def arguments(self) -> list[Any]:
        """The inputs of all graphs: name, type, shape."""
        return [argument for graph in self.graphs for argument in graph.arguments()]

    def bind_input(self, name: str, array: Array) -> None:
        """Bind an input of all graphs that have it."""
        for graph, known in zip(self.graphs, self._arguments):
            if name in known:
                graph.bind_input(name, array)

    def bind_output(self, name: str, array: Array, segment: int | None = None) -> None:
        """Bind a result to an array that the run of its graph writes to.

        With a `segment`, the array is written when that runs, even if an earlier one has computed
        the result.
        """
        home = self._home[name]
        if segment is not None and home not in self._graphs_of(segment):
            self._late[segment][name] = array
            return
        self.graphs[home].bind_output(name, array)
        self._bound.add(name)
        if self._is_read_after(name, home):
            self._copied[home][name] = array

    def results_of_empty(self, names: Sequence[str]) -> list[Array]:
        """Results of the empty batch that is bound."""
        found: dict[str, Array] = {}
        for graph, feeds in zip(self.graphs[: self._last_forward + 1], self._feeds):
            own = [each.name for each in graph.results() if each.name in names]
            found |= zip(own, feeds.results_of_empty(own))
        return [found[name] for name in names]

    def run(self, i: int) -> None:
        """Run a segment; the next ones find its results."""
        for name, array in self._late[i].items():
            np.copyto(array, self._values[name])
        for graph in self._graphs_of(i):
            if self._is_run[graph]:
                self._run(graph)
            self._forget_values(graph)
            self._add_up(graph)
        self.is_ready = i + 1 < len(self._ends)

    def skip(self, i: int) -> None:
        """Take part in the sums of a segment, whose batch is empty here."""
        for graph in self._graphs_of(i):
            shared = self._sums[graph]
            if shared is not None:
                self._totals[shared.part].fill(0)
                self._add_up(graph)

    def _graphs_of(self, i: int) -> range:
        return range(self._ends[i - 1] if i else 0, self._ends[i])

    def _add_up(self, i: int) -> None:
        """Sum over processes what a graph ends with, if it ends at a sum."""
        shared = self._sums[i]
        if shared is not None:
            assert self._all_reduce is not None
            self._all_reduce(self._totals[shared.part])

    def _run(self, i: int) -> None:
        graph = self.graphs[i]
        self._bind_parameters(i)
        for name in self._takes[i]:
            graph.bind_input(name, self._values[name])
        wanted = [
            result.name
            for result in graph.results()
            if result.name not in self._bound and self._is_read_after(result.name, i)
        ]
        self._values |= zip(wanted, self._feeds[i].run(wanted))
        for name, array in self._copied[i].items():  # it may be summed before it is read
            self._values[name] = array.copy()

    def _forget_values(self, i: int) -> None:
        """Release the results of earlier graphs that this graph was the last to read."""
        for name in self._takes[i]:
            if self._last_reader[name] == i and name not in self._shown:
                self._values.pop(name, None)

    def _bind_parameters(self, i: int) -> None:
        """Bind a graph to the vectors of parameters that are held now."""
        for update in self._updates_read[i]:
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
        kept = {name for name, last in self._last_reader.items() if last > self._last_forward}
        found = [self._values[name] for name in self._shown]
        for name in self._shown:
            if name not in kept:
                self._values.pop(name, None)
        return found


def _is_sharded(store: NumpyStore | NumpyPartStore) -> TypeGuard[NumpyPartStore]:
    """Whether whole parameters are there only for some time."""
    return isinstance(store, NumpyPartStore) and not store.sharding.has_whole_parameters
