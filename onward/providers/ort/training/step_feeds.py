"""Check and bind the feeds of a training step, and draw its random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError, ProviderError
from onward.programs.arrays import to_plain_array
from onward.programs.derived_feeds import DerivedFeeds
from onward.programs.feed_rules import FeedRules, select_results
from onward.programs.label_ranges import index_refusal
from onward.programs.program import Array, Layout
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.lowered import LoweredProgram
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw

if TYPE_CHECKING:  # stores of one process do not need it
    from onward.providers.ort.training.part_store import NumpyPartStore


class StepFeeds:
    """Binds the feeds of a graph; its other inputs are bound to the store."""

    def __init__(
        self,
        graph: BoundGraph,
        layout: Layout,
        store: NumpyStore | NumpyPartStore,
        *,
        partial: bool = False,
    ) -> None:
        self.graph = graph
        arguments = graph.arguments()
        held = store.inputs
        for argument in arguments:
            if argument.name in held:
                graph.bind_input(argument.name, held[argument.name])
        self._rules = FeedRules(arguments, layout, partial=partial)
        self._derived = DerivedFeeds(layout.derived, [argument.name for argument in arguments])
        self._given: dict[str, Array] = {}
        self._bound: dict[str, Array] = {}
        self.is_empty = False  # whether the bound batch is empty

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Check these feeds and bind them for the next run."""
        rules = self._rules
        rules.check_mapping(feeds)
        if self._is_bound(feeds):
            rules.check_labels(self._bound)
            self._bind_derived(feeds)
            return
        arrays = rules.select({name: _array(name, value) for name, value in feeds.items()})
        self._given = arrays
        if arrays.keys() != rules.names:
            rules.check(arrays)
        rules.check_labels(arrays)
        empty = rules.is_empty(arrays)
        # engines do not check that targets fit, nor the sizes of what derived inputs are made of
        if empty or self._derived.rows or not rules.targets_fit(arrays):
            rules.check(arrays)
        try:
            for name, array in arrays.items():
                if self._bound.get(name) is not array:
                    self.graph.bind_input(name, array)
                    self._bound[name] = array
        except FeedError:
            rules.check(arrays)  # its message says more
            raise
        self.is_empty = empty
        if not empty:
            self._bind_derived(feeds)

    def _bind_derived(self, feeds: Mapping[str, Any]) -> None:
        """Bind the inputs that are computed from the contents of feeds."""
        if not self._derived.rows:
            return
        for name, array in self._derived.compute(_source_arrays(self._derived, feeds)).items():
            self.graph.bind_input(name, array)

    def _is_bound(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the same array objects are bound already; their contents may have changed."""
        bound = self._bound
        if not len(feeds) == len(bound) == len(self._rules.names):
            return False
        for name, value in feeds.items():  # noqa: SIM110  # a generator would be slower
            if bound.get(name) is not value:
                return False
        return True

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        """Run the graph; if it fails, raise the error of wrong feeds if there are any."""
        try:
            return self.graph.run(wanted)
        except ProviderError as error:
            self._rules.check(self._given)
            raise index_refusal(error) or error from error.__cause__

    def results_of_empty(self, wanted: Sequence[str]) -> list[Array]:
        """Results of an empty batch: NaN for the loss, empty outputs."""
        results = select_results(self.graph.results(), wanted)
        return self._rules.results_of_empty(results, self._given)


class UniformNoise:
    """Draws uniform random numbers, determined by seed, step and micro-batch."""

    def __init__(self, program: LoweredProgram, open_graph: Callable[[bytes], BoundGraph]) -> None:
        self.needed = program.noise_size is not None
        self._bytes, self._open = program.noise_size, open_graph
        self._by_shape = program.noise_by_shape
        self._graph: BoundGraph | None = None
        self._derived = DerivedFeeds(program.layout.derived)
        self._sizes: dict[tuple[Any, ...], int] = {}

    def draw(self, feeds: Mapping[str, Any], draw: Draw) -> Array:
        """The random numbers for these feeds at this step."""
        generator = np.random.Generator(np.random.SFC64([draw.seed, draw.step, draw.micro]))
        if self._derived.rows:
            sources = _source_arrays(self._derived, feeds)
            feeds = {**feeds, **self._derived.compute(sources)}
        return generator.random(self._size(feeds), np.float32)

    def _size(self, feeds: Mapping[str, Any]) -> int:
        """How many numbers feeds need; cached by their shapes where these determine it."""
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


def _source_arrays(derived: DerivedFeeds, feeds: Mapping[str, Any]) -> dict[str, Array]:
    """The feeds that derived inputs are computed from."""
    names = dict.fromkeys(name for rows in derived.rows for name in rows.sources)
    return {name: _array(name, feeds[name]) for name in names}


def _array(name: str, value: Any) -> Array:
    """A feed as a contiguous array in native byte order."""
    return to_plain_array(value, f"input {name!r}", FeedError)
