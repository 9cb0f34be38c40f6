"""FeedRules: check the feeds of a program's graph, for any engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onward.errors import FeedError
from onward.graph.signature import check_feeds
from onward.programs.empty_batches import empty_results, is_empty
from onward.programs.label_ranges import check_labels
from onward.programs.program import Array, Layout


class FeedRules:
    """The user's inputs of a graph: names, types, shapes, ranges of labels.

    Feeds are arrays; where only types and shapes are checked, an array may represent a tensor on
    another device.
    """

    def __init__(self, arguments: Iterable[Any], layout: Layout, *, partial: bool = False) -> None:
        known = {argument.name: argument for argument in arguments}
        names = [name for name in (*layout.inputs, *layout.targets) if name in known]
        self.arguments = [known[name] for name in names]
        self.names = set(names)
        self._partial = partial  # the graph reads only some of the feeds
        self._targets = set(layout.targets)
        self._known = {*layout.inputs, *layout.targets}
        self._labels = [each for each in layout.labels if each.name in self.names]
        self.labels = [each.name for each in self._labels]

    def check_mapping(self, feeds: object) -> None:
        """Refuse feeds that are not a dictionary."""
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            names = ", ".join(f"{argument.name!r}: ..." for argument in self.arguments)
            kind = type(feeds).__name__
            raise FeedError(f"feeds must be a dictionary of arrays, not {kind}\ngive {{{names}}}")

    def select(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """The feeds of a step that this graph reads."""
        if self._partial and feeds.keys() <= self._known:
            return {name: feed for name, feed in feeds.items() if name in self.names}
        return feeds

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Check the names, types and shapes of feeds."""
        check_feeds(arrays, self.arguments, [])

    def check_labels(self, arrays: Mapping[str, Array]) -> None:
        """Refuse labels that are not classes; only feeds in `arrays` are checked."""
        for labels in self._labels:
            if labels.name in arrays:
                check_labels(arrays[labels.name], labels)

    def is_empty(self, arrays: Mapping[str, Any]) -> bool:
        """Whether feeds have no samples."""
        for array in arrays.values():
            if not array.size:
                return is_empty(_shapes(arrays), self.arguments)
        return False

    def targets_fit(self, arrays: Mapping[str, Any]) -> bool:
        """Whether targets have the sizes of the inputs; if not, kernels drop or repeat samples."""
        sizes: dict[str, int] = {}
        for argument in self.arguments:  # targets come last
            for symbol, size in zip(argument.shape, arrays[argument.name].shape):
                is_other = isinstance(symbol, str) and sizes.setdefault(symbol, size) != size
                if is_other and argument.name in self._targets:
                    return False
        return True

    def results_of_empty(self, results: Iterable[Any], arrays: Mapping[str, Any]) -> list[Array]:
        """The results of an empty batch: NaN for the loss, outputs without samples."""
        return empty_results(results, _shapes(arrays), self.arguments)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def select_results(results: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """The outputs with these names, in this order."""
    known = {result.name: result for result in results}
    return [known[name] for name in names]
