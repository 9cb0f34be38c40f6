"""TorchSegments: the train graph as functions that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onward.gradients.split import split
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs
from onward.providers.torch.training.step_functions import StepFunctions

Groups = Sequence[Sequence[str]]  # the results of each segment
Run = Callable[[Callable[..., Any], list[Any], TorchGraph], Any]


class _Segment(NamedTuple):
    graph: TorchGraph
    reads: list[str]  # feeds, and values of earlier segments
    gives: list[str]  # what it returns, in addition to the gradients of its update
    update: int | None  # whose gradients it computes


class TorchSegments:
    """Functions of the forward pass, then one for each update, with the tensors that pass on.

    Functions read parameters in the storage that the store's vectors have at the call: between
    segments a storage may be freed (`untyped_storage().resize_(0)`) and allocated again.
    """

    def __init__(
        self, graphs: TorchGraphs, functions: StepFunctions, forward: Groups, updates: Groups
    ) -> None:
        layout = graphs.layout
        pieces = split(graphs.train.model, [*forward, *updates])
        self.forward = range(len(forward))
        self.backward = range(len(forward), len(pieces))
        self._functions, self._shown = functions, forward
        self._segments: list[_Segment] = []
        for i, (piece, group) in enumerate(zip(pieces, (*forward, *updates))):
            graph = TorchGraph(piece.model, graphs.provider)
            fed = (*layout.inputs, *layout.targets, *piece.takes)
            reads = [name for name in dict.fromkeys(fed) if name in graph.inputs]
            shown = group if i in self.forward else ()
            gives = list(dict.fromkeys([*shown, *piece.gives]))
            update = None if i in self.forward else i - len(forward)
            self._segments.append(_Segment(graph, reads, gives, update))
        self._last_reader = {n: i for i, each in enumerate(self._segments) for n in each.reads}
        self._built: dict[tuple[int, bool], Callable[..., Any]] = {}
        self._values: dict[str, Any] = {}

    def begin(self, feeds: Mapping[str, Tensor]) -> None:
        """Begin with a batch; values of the last one are forgotten."""
        self._values = {name: feed for name, feed in feeds.items() if name in self._last_reader}

    def run_forward(self, run: Run) -> dict[str, Any]:
        """Run the forward pass; its results."""
        results: dict[str, Any] = {}
        for i in self.forward:
            made, _ = self._run(i, run, None, first=True)
            results |= {name: made[name] for name in self._shown[i]}
        return results

    def run_update(self, update: int, run: Run, held: Tensor | None, *, first: bool) -> Tensor:
        """Compute the gradients of an update; added to those that are `held`, unless first."""
        gradients: Tensor
        _, gradients = self._run(self.backward[update], run, held, first=first)
        return gradients

    def _run(
        self, i: int, run: Run, held: Tensor | None, *, first: bool
    ) -> tuple[dict[str, Any], Any]:
        segment = self._segments[i]
        given = [self._values[name] for name in segment.reads]
        for name in segment.reads:
            if self._last_reader[name] == i:
                del self._values[name]
        if held is not None:
            given.append(held)
        values, gradients = run(self._function(i, first), given, segment.graph)
        made = dict(zip(segment.gives, values))
        self._values |= {n: value for n, value in made.items() if self._last_reader.get(n, -1) > i}
        return made, gradients

    def _function(self, i: int, first: bool) -> Callable[..., Any]:
        segment = self._segments[i]
        key = i, first or segment.update is None
        if key not in self._built:
            self._built[key] = self._functions.segment(*segment, first=first)
        return self._built[key]
