"""Feeds of a training step: checked, bound; and the random numbers that go with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import FeedError, ProviderError
from onward.graph.signature import check_feeds
from onward.programs.arrays import to_plain_array
from onward.programs.empty import empty_results, is_empty
from onward.programs.program import Array, Layout
from onward.programs.ranges import check_labels, index_refusal
from onward.providers.ort.training.graphs import BoundGraph
from onward.providers.ort.training.lowered import LoweredProgram
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw


class Feeds:
    """The inputs of a graph that come from the user; all others are bound to the store."""

    def __init__(
        self, graph: BoundGraph, layout: Layout, store: NumpyStore, *, partial: bool = False
    ) -> None:
        self.graph, self._partial = graph, partial  # partial: it reads only some of the feeds
        held = store.inputs
        arguments = {argument.name: argument for argument in graph.arguments()}
        for name in arguments.keys() & held.keys():
            graph.bind_input(name, held[name])
        wanted = [n for n in (*layout.inputs, *layout.targets) if n in arguments]
        self._arguments = [arguments[name] for name in wanted]
        self._names = set(wanted)
        self._targets = set(layout.targets)
        self._known = {*layout.inputs, *layout.targets}
        self._given: dict[str, Array] = {}
        self._bound: dict[str, Array] = {}
        self._labels = [each for each in layout.labels if each.name in arguments]
        self.is_empty = False  # whether what is bound holds no sample

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Bind these feeds for the next run, or say what is wrong with them."""
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise self._no_mapping(feeds)
        if self._is_bound(feeds):
            for labels in self._labels:
                check_labels(self._bound[labels.name], labels)
            return
        arrays = {name: _array(name, value) for name, value in feeds.items()}
        if self._partial and arrays.keys() <= self._known:
            arrays = {name: array for name, array in arrays.items() if name in self._names}
        self._given = arrays
        if arrays.keys() != self._names:
            self._check()
        for labels in self._labels:
            check_labels(arrays[labels.name], labels)
        empty = any(not array.size for array in arrays.values())
        empty = empty and is_empty(self._shapes(), self._arguments)
        if empty or not self._targets_fit():  # no engine will say so
            self._check()
        try:
            for name, array in arrays.items():
                if self._bound.get(name) is not array:
                    self.graph.bind_input(name, array)
                    self._bound[name] = array
        except FeedError:
            self._check()  # which says it in more words
            raise
        self.is_empty = empty

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._given.items()}

    def _is_bound(self, feeds: Mapping[str, Any]) -> bool:
        """Whether these very arrays are bound already; what they hold may have changed."""
        bound = self._bound
        if not len(feeds) == len(bound) == len(self._names):
            return False
        for name, value in feeds.items():  # noqa: SIM110  # a generator would cost more than it
            if bound.get(name) is not value:
                return False
        return True

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        """Run the graph with what is bound; if it fails, see whether the feeds are to blame."""
        try:
            return self.graph.run(wanted)
        except ProviderError as error:
            self._check()
            raise index_refusal(error) or error from error.__cause__

    def results_of_empty(self, wanted: Sequence[str]) -> list[Array]:
        """What an empty batch gives: NaN for the loss, outputs without a sample."""
        outputs = {each.name: each for each in self.graph.results()}
        return empty_results((outputs[n] for n in wanted), self._shapes(), self._arguments)

    def _no_mapping(self, feeds: object) -> FeedError:
        names = ", ".join(f"{argument.name!r}: ..." for argument in self._arguments)
        kind = type(feeds).__name__
        return FeedError(f"feeds are a dictionary of arrays, not {kind}\ngive {{{names}}}")

    def _check(self) -> None:
        check_feeds(self._given, self._arguments, [])

    def _targets_fit(self) -> bool:
        """Whether targets have the sizes of the inputs: kernels drop or repeat samples else."""
        sizes: dict[str, int] = {}
        for argument in self._arguments:  # targets come last
            for symbol, size in zip(argument.shape, self._given[argument.name].shape):
                is_other = isinstance(symbol, str) and sizes.setdefault(symbol, size) != size
                if is_other and argument.name in self._targets:
                    return False
        return True


class Noise:
    """Uniform random numbers: a function of the seed, the step and the micro-batch alone."""

    def __init__(self, program: LoweredProgram, open_graph: Callable[[bytes], BoundGraph]) -> None:
        self.needed = program.noise_size is not None
        self._bytes, self._open = program.noise_size, open_graph
        self._by_shape = program.noise_by_shape
        self._graph: BoundGraph | None = None
        self._sizes: dict[tuple[Any, ...], int] = {}

    def draw(self, feeds: Mapping[str, Any], draw: Draw) -> Array:
        """As many numbers as these feeds need, at this step."""
        generator = np.random.Generator(np.random.SFC64([draw.seed, draw.step, draw.micro]))
        return generator.random(self._size(feeds), np.float32)

    def _size(self, feeds: Mapping[str, Any]) -> int:
        """How many: counted once for every set of shapes, where these decide."""
        key = tuple((name, np.shape(value)) for name, value in sorted(feeds.items()))
        if key not in self._sizes or not self._by_shape:
            if self._graph is None:
                assert self._bytes is not None
                self._graph = self._open(self._bytes)
            for argument in self._graph.arguments():
                self._graph.bind_input(argument.name, _array(argument.name, feeds[argument.name]))
            [size] = self._graph.run(["noise_size"])
            self._sizes[key] = int(size)
        return self._sizes[key]


def _array(name: str, value: Any) -> Array:
    """A feed as an array whose memory has no gaps and whose numbers are this machine's."""
    return to_plain_array(value, f"input {name!r}", FeedError)
