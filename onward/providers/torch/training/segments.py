"""TorchSegments: the train graph as torch functions, cut where processes communicate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from onward.programs.forward_segments import cut_forward
from onward.programs.program import SharedSum
from onward.programs.shared_sums import split_at_sums
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.step_functions import StepFunctions

Groups = Sequence[Sequence[str]]  # the results of each segment
Run = Callable[[Callable[..., Any], list[Any], TorchGraph], Any]


AllReduce = Callable[[Tensor], None]  # sums a tensor over processes, in place


class _Function(NamedTuple):
    """A part of a segment, which ends at a sum over processes, or is the segment's last."""

    graph: TorchGraph
    reads: list[str]  # feeds, and values of earlier functions
    gives: list[str]  # what it returns, in addition to the gradients of its update
    update: int | None  # whose gradients it computes
    sum: SharedSum | None  # over processes, after it


class TorchSegments:
    """Segments of the forward pass, then one of the backward pass for each update.

    It holds the tensors that later segments read.

    Functions read parameters in the storage that the store's vectors have at the call: between
    segments a storage may be freed (`untyped_storage().resize_(0)`) and allocated again.
    """

    def __init__(
        self,
        model: ir.Model,
        graphs: TorchGraphs,
        functions: StepFunctions,
        results: Sequence[str],
        updates: Groups = (),
        sums: Sequence[SharedSum] = (),
        all_reduce: AllReduce | None = None,
    ) -> None:
        layout, store = graphs.layout, functions.store
        forward, bucket_of = [list(results)], {}
        if isinstance(store, TorchPartStore) and not store.sharding.has_whole_parameters:
            buckets = store.sharding.buckets
            bucket_of = {n: i for i, each in enumerate(buckets) for n in each.update.parameters}
            model = model.clone()
            forward = cut_forward(model, results, bucket_of, [each.bytes for each in buckets])
        groups = (*forward, *updates)
        self.forward = range(len(forward))
        self.backward = range(len(forward), len(groups))
        self._writer, self._results, self._all_reduce = functions, set(results), all_reduce
        self._segments: list[range] = []  # the functions of each segment
        self._functions: list[_Function] = []
        fed = (*layout.fed, *(each.total for each in sums))
        pieces = split_at_sums(model, groups, sums)
        for i, (group, cuts) in enumerate(zip(groups, pieces)):
            start = len(self._functions)
            for piece, shared in cuts:
                graph = TorchGraph(piece.model, graphs.provider)
                reads = [n for n in dict.fromkeys((*fed, *piece.takes)) if n in graph.inputs]
                is_gradients = shared is None and i in self.backward
                own = [shared.part] if shared else () if is_gradients else group
                gives = list(dict.fromkeys([*own, *piece.gives]))
                update = i - len(forward) if is_gradients else None
                self._functions.append(_Function(graph, reads, gives, update, shared))
            self._segments.append(range(start, len(self._functions)))
        self.reads = [  # the updates whose parameters each segment reads
            tuple(
                sorted(
                    {
                        bucket_of[n]
                        for f in each
                        for n in self._functions[f].graph.inputs
                        if n in bucket_of
                    }
                )
            )
            for each in self._segments
        ]
        self._last_reader = {n: i for i, each in enumerate(self._functions) for n in each.reads}
        self._built: dict[tuple[int, bool], Callable[..., Any]] = {}
        self._values: dict[str, Any] = {}
        self._device = functions.device

    def begin(self, feeds: Mapping[str, Tensor]) -> None:
        """Begin with a batch; values of the last one are forgotten."""
        self._values = {name: feed for name, feed in feeds.items() if name in self._last_reader}

    def run_forward(self, run: Run, before: Callable[[int], None]) -> dict[str, Any]:
        """Run the forward pass, with `before` each segment; its results."""
        results: dict[str, Any] = {}
        for i in self.forward:
            before(i)
            for function in self._segments[i]:
                made, _ = self._run(function, run, None, first=True)
                results |= {n: value for n, value in made.items() if n in self._results}
        return results

    def run_update(self, update: int, run: Run, held: Tensor | None, *, first: bool) -> Tensor:
        """Compute the gradients of an update; added to those that are `held`, unless first."""
        gradients: Any = None
        for function in self._segments[self.backward[update]]:
            _, gradients = self._run(function, run, held, first=first)
        return gradients  # type: ignore[no-any-return]

    def skip(self, i: int) -> None:
        """Join the all-reduces of a segment with zeros: this process has no rows."""
        for function in self._segments[i]:
            shared = self._functions[function].sum
            if shared is not None:
                dtype = getattr(torch, shared.dtype)
                self._all_reduce_sum(torch.zeros(shared.size, dtype=dtype, device=self._device))

    def _run(
        self, i: int, run: Run, held: Tensor | None, *, first: bool
    ) -> tuple[dict[str, Any], Any]:
        function = self._functions[i]
        given = [self._values[name] for name in function.reads]
        for name in function.reads:
            if self._last_reader[name] == i:
                del self._values[name]
        if held is not None and function.update is not None:
            given.append(held)
        values, gradients = run(self._build(i, first), given, function.graph)
        made = dict(zip(function.gives, values))
        self._values |= {n: value for n, value in made.items() if self._last_reader.get(n, -1) > i}
        if function.sum is not None:
            self._all_reduce_sum(made[function.sum.part])
            self._values[function.sum.total] = made[function.sum.part]
        return made, gradients

    def _all_reduce_sum(self, vector: Tensor) -> None:
        assert self._all_reduce is not None
        self._all_reduce(vector)

    def _build(self, i: int, first: bool) -> Callable[..., Any]:
        graph, reads, gives, update, _ = self._functions[i]
        key = i, first or update is None
        if key not in self._built:
            self._built[key] = self._writer.segment(graph, reads, gives, update, first=first)
        return self._built[key]
