"""StepCalls: calls the functions of a program, each written at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onward.errors import NodeFailed, ProviderError
from onward.programs.label_ranges import index_refusal
from onward.programs.program import LOSS
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.prepared_weights import without_weight_cache
from onward.providers.torch.training.captured_calls import CapturedCalls
from onward.providers.torch.training.graph_pool import GraphPool
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs
from onward.providers.torch.training.sparse_rows import with_sparse_rows
from onward.providers.torch.training.step_feeds import Batch
from onward.providers.torch.training.step_functions import StepFunctions

Function = Callable[..., Any]


class StepCalls:
    """The functions of a step, of its parts, and of evaluation and prediction.

    With `records`, they are recorded as CUDA graphs, which share one pool of memory. `held` are
    the gradients to add to, if there are any.
    """

    def __init__(self, graphs: TorchGraphs, functions: StepFunctions, *, records: bool) -> None:
        self._graphs, self._layout, self._functions = graphs, graphs.layout, functions
        self._pool = GraphPool(functions.device) if records else None
        self._written: dict[tuple[str, bool], Function] = {}

    def step(self, batch: Batch) -> tuple[dict[str, Any], Tensor]:
        """The loss and the outputs, and whether the gradients were finite; updates everything."""
        graph, updates = self._graphs.train, self._graphs.updates
        feeds = self._feed_names(graph)
        function = self._write(
            "step", lambda: self._functions.step(with_sparse_rows(self._graphs), feeds, updates)
        )
        shown, finite = call(function, [batch.tensors[name] for name in feeds], graph)
        return dict(zip(self._layout.results_of("train"), shown)), finite

    def compute_gradients(
        self, batch: Batch, held: Sequence[Tensor], first: bool
    ) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """The loss and the outputs, and the gradients."""
        graph = self._graphs.train
        feeds = self._feed_names(graph)
        function = self._write(
            "compute_gradients",
            lambda: self._functions.compute_gradients(graph, feeds, first),
            first,
        )
        shown, gradients = call(function, [*(batch.tensors[n] for n in feeds), *held], graph)
        return dict(zip(self._layout.results_of("train"), shown)), gradients

    def forward(self, batch: Batch) -> dict[str, Any]:
        """The loss, the outputs, the new statistics, and the values that `backward` reads."""
        graph, _, crossing = self._graphs.forward_backward
        made = (*self._layout.results_of("train"), *self._layout.state.values(), *crossing)
        return self._run("forward", graph, list(dict.fromkeys(made)), batch)

    def backward(
        self, batch: Batch, values: Mapping[str, Any], held: Sequence[Tensor], first: bool
    ) -> Sequence[Tensor]:
        """The gradients of a batch, from the values of its forward pass."""
        _, graph, crossing = self._graphs.forward_backward
        names = [*self._feed_names(graph), *crossing]
        function = self._write(
            "backward", lambda: self._functions.backward(graph, names, first), first
        )
        tensors = {**batch.tensors, **values}
        given = [tensors[name] for name in names]
        given += [values[name] for name in (LOSS, *self._layout.state.values())]
        gradients: Sequence[Tensor] = call(function, [*given, *held], graph)
        return gradients

    def update(self, gradients: list[Tensor]) -> Tensor:
        """Update the parameters; whether the gradients were finite."""
        function = self._write("update", lambda: self._functions.update(self._graphs.updates))
        finite: Tensor = call(function, gradients)
        return finite

    def infer(self, name: str, batch: Batch) -> dict[str, Any]:
        """The results of "evaluate" or "predict"."""
        return self._run(name, getattr(self._graphs, name), self._layout.results_of(name), batch)

    def _run(
        self, name: str, graph: TorchGraph, wanted: Sequence[str], batch: Batch
    ) -> dict[str, Any]:
        feeds = self._feed_names(graph)
        function = self._write(name, lambda: self._functions.run(graph, feeds, wanted))
        made = call(function, [batch.tensors[each] for each in feeds], graph)
        return dict(zip(wanted, made))

    def _feed_names(self, graph: TorchGraph) -> list[str]:
        """The inputs of a graph that are feeds."""
        return [name for name in self._layout.fed if name in graph.inputs]

    def _write(self, name: str, write: Callable[[], Function], first: bool = True) -> Function:
        """The function of this name, written at its first use."""
        if (name, first) not in self._written:
            function = _without_autograd(write())
            if self._pool is not None:
                function = CapturedCalls(function, self._pool, packs_results=name == "step")
            self._written[name, first] = function
        return self._written[name, first]


def call(function: Function, given: list[Any], graph: TorchGraph | None = None) -> Any:
    """Call a function of a step; an error names the node that failed."""
    try:
        return function(*given)
    except Exception as error:
        raise _failure(error, graph) from error


def _without_autograd(function: Function) -> Function:
    """The function; a replay of its recording needs neither, and is spared their time."""

    def run(*given: Any) -> Any:
        with torch.no_grad(), without_weight_cache():
            return function(*given)

    return run


def _failure(error: Exception, graph: TorchGraph | None) -> ProviderError | Exception:
    """The error of a failed call: names the node, or the index that is out of range."""
    node = None if graph is None else graph.module.failed_node(error)
    if node is None:
        return ProviderError(f"torch failed: {error}")
    failed = NodeFailed(f"torch failed: {error} (at {node[0]}, node {node[1]!r})", node[0])
    return index_refusal(failed) or failed
