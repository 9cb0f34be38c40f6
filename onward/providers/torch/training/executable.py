"""TorchTraining: a training program in torch, eager or compiled, all of its state on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onward.errors import NodeFailed, OptionError, ProviderError
from onward.programs.feed_rules import select_results
from onward.programs.label_ranges import index_refusal
from onward.programs.program import LOSS, SCALE, Program
from onward.providers.provider import Draw, Provider
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.prepared_weights import forgetful
from onward.providers.torch.provider import TorchProvider, in_own_memory, storage_of
from onward.providers.torch.tensors import to_torch
from onward.providers.torch.training.lowering import TrainingGraph, TrainingGraphs, lower_program
from onward.providers.torch.training.results import TorchResults
from onward.providers.torch.training.step_feeds import Batch, TorchFeeds, to_device
from onward.providers.torch.training.step_functions import (
    Scalars,
    StepFunctions,
    are_finite,
    squared,
)
from onward.providers.torch.training.store import TorchStore


def open_program(program: Program, provider: Provider) -> TorchTraining | None:
    """A program on a torch provider; None where torch lacks an operator of it."""
    assert isinstance(provider, TorchProvider)
    graphs = lower_program(program, provider)
    return None if graphs is None else TorchTraining(graphs, provider)


@dataclass(frozen=True)
class _Opened:
    """A graph that is run for its results: its feeds and its function."""

    graph: TrainingGraph
    feeds: TorchFeeds
    function: Callable[..., Any]


@dataclass(frozen=True)
class _Halfway:
    """What `forward` keeps for `backward`."""

    batch: Batch
    values: dict[str, Any]  # what the first half made


class TorchTraining:
    """A TrainingExecutable: nothing is copied to the host in a step, and nothing waits for it.

    Whether gradients are finite, the count of updates and the learning rates of the next ones are
    on the device, too; the update leaves every tensor as it is where gradients are not finite.
    """

    lookahead = 32

    def __init__(self, graphs: TrainingGraphs, provider: TorchProvider) -> None:
        self._graphs, self._layout = graphs, graphs.layout
        self._device, self._captured = provider.device, provider.captured
        with torch.no_grad():
            self.store = TorchStore(self._layout, self._device)
            self._scalars = Scalars(self._layout, self._device, self.lookahead)
        self._functions = StepFunctions(
            self._layout, self.store, self._scalars, provider.compiler, provider.captured
        )
        self._train_feeds = TorchFeeds(graphs.train, self._layout, self._device)
        self._built: dict[tuple[str, bool], Callable[..., Any]] = {}
        self._opened: dict[str, _Opened] = {}
        self._halfway: _Halfway | None = None
        self._share = 1.0  # what the gradients of the last update were multiplied by
        held = [t.parameters for t in self.store.updates]
        held += [*(each.vector for each in self.store.state), *self.store.frozen.values()]
        self._held = {storage_of(tensor) for tensor in held}

    # -- progress ------------------------------------------------------------------------------

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        table = torch.tensor([list(ahead) for ahead in rates], dtype=torch.float64)
        self._scalars.rates.copy_(to_device(table, self._device))
        self._scalars.count.fill_(steps)
        self._scalars.first.fill_(steps)

    @property
    def finite(self) -> bool:
        return bool(self._scalars.flag)

    @finite.setter
    def finite(self, finite: bool) -> None:
        self._scalars.flag.fill_(finite)

    def gradients_changed(self) -> None:
        buffers = self.store.gradient_buffers()
        with torch.no_grad():
            self._scalars.flag.copy_(are_finite(buffers))
            if self._layout.settings.clip_norm is not None:
                self._scalars.squares.copy_(squared(buffers))

    def gradient_norm(self) -> float:
        return math.sqrt(float(squared(self.store.gradient_buffers()))) * self._share

    # -- training ------------------------------------------------------------------------------

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[TorchResults, Tensor] | None:
        results = self.compute_gradients(feeds, draw, scale, first=True)
        return None if results is None else (results, self.update(1, scale))

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> TorchResults | None:
        batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            return None
        self._scalars.write(self._scalars.inputs[SCALE], scale)
        self._scalars.write_draw(draw)
        given = [batch.tensors[name] for name in self._given(self._graphs.train)]
        given += self._earlier(first)
        function = self._build("compute_gradients", first)
        shown, gradients = self._run(function, given, self._graphs.train)
        self._keep_gradients(gradients)
        return self._results((LOSS, *self._layout.outputs), shown, batch)

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> TorchResults | None:
        batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            self._halfway = _Halfway(batch, {})
            return None
        graph, _, crossing = self._graphs.halves
        self._scalars.write_draw(draw)
        names = (LOSS, *self._layout.outputs, *self._layout.state.values(), *crossing)
        names = tuple(dict.fromkeys(names))
        function = self._build("forward", True)
        given = [batch.tensors[name] for name in self._given(graph)]
        made = self._run(function, given, graph)
        values = dict(zip(names, map(torch.clone, made) if self._captured else made))
        self._halfway = _Halfway(batch, values)
        shown = (LOSS, *self._layout.outputs)
        return self._results(shown, [values[name] for name in shown], batch)

    def backward(self, scale: float, first: bool) -> None:
        halfway = self._halfway
        if halfway is not None and halfway.batch.is_empty:
            return
        if halfway is None:
            raise OptionError("run_backward has nothing to go back from\ncall run_forward first")
        self._scalars.write(self._scalars.inputs[SCALE], scale)
        _, graph, crossing = self._graphs.halves
        tensors = {**halfway.batch.tensors, **halfway.values}
        given = [tensors[name] for name in (*self._given(graph), *crossing)]
        given.append(halfway.values[LOSS])
        given += [halfway.values[name] for name in self._layout.state.values()]
        given += self._earlier(first)
        self._halfway = None
        gradients = self._run(self._build("backward", first), given, graph)
        self._keep_gradients(gradients)

    def update(self, micro: int, scale: float) -> Tensor:
        self._share = share = 1.0 / (micro * scale)
        buffers = self.store.gradient_buffers()
        if self._layout.settings.scaled:
            for factor in self._scalars.factors:
                self._scalars.write(factor, share)
        elif share != 1.0:  # more micro-batches than the program knows of
            for buffer in buffers:
                buffer.mul_(share)
            self._share = 1.0
        finite: Tensor = self._run(self._build("update", True), buffers)
        return finite.clone() if self._captured else finite

    # -- looking -------------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> TorchResults:
        return self._look("evaluate", (LOSS, *self._layout.outputs), feeds)

    def predict(self, feeds: Mapping[str, Any]) -> TorchResults:
        return self._look("predict", self._layout.model_outputs, feeds)

    def _look(self, name: str, wanted: Sequence[str], feeds: Mapping[str, Any]) -> TorchResults:
        if name not in self._opened:
            graph: TrainingGraph = getattr(self._graphs, name)
            reader = TorchFeeds(graph, self._layout, self._device)
            function = self._functions.run(graph, self._given(graph), wanted)
            self._opened[name] = _Opened(graph, reader, function)
        opened = self._opened[name]
        batch = opened.feeds.read(feeds)
        if batch.is_empty and name == "evaluate":
            rules, outputs = opened.feeds.rules, select_results(opened.graph.results, wanted)
            arrays = rules.results_of_empty(outputs, batch.shapes)
            empty = [to_torch(array, self._device) for array in arrays]
            return TorchResults(dict(zip(wanted, empty)), batch.as_numpy)
        given = [batch.tensors[each] for each in self._given(opened.graph)]
        return self._results(wanted, self._run(opened.function, given, opened.graph), batch)

    # -- functions -----------------------------------------------------------------------------

    def _given(self, graph: TrainingGraph) -> list[str]:
        """The inputs of a graph that a call is given: feeds."""
        names = (*self._layout.inputs, *self._layout.targets)
        return [name for name in names if name in graph.inputs]

    def _earlier(self, first: bool) -> list[Tensor]:
        """The gradients so far, to add to; where there are none, their memory is freed."""
        if self._captured:
            return []
        if not first:
            return self.store.gradient_buffers()
        for tensors in self.store.updates:
            tensors.gradients = None
        return []

    def _keep_gradients(self, gradients: Sequence[Tensor]) -> None:
        if not self._captured:
            for tensors, vector in zip(self.store.updates, gradients):
                tensors.gradients = vector

    def _build(self, name: str, first: bool) -> Callable[..., Any]:
        """A function of the step, written when it is first used."""
        if (name, first) not in self._built:
            self._built[name, first] = self._write(name, first)
        return self._built[name, first]

    def _write(self, name: str, first: bool) -> Callable[..., Any]:
        functions, graphs = self._functions, self._graphs
        function: Callable[..., Any]
        if name == "update":
            function = functions.update(graphs.updates)
        elif name == "compute_gradients":
            given = self._given(graphs.train)
            function = functions.compute_gradients(graphs.train, given, first)
        elif name == "forward":
            graph, _, crossing = graphs.halves
            results = [LOSS, *self._layout.outputs, *self._layout.state.values(), *crossing]
            wanted = list(dict.fromkeys(results))
            function = functions.run(graph, self._given(graph), wanted)
        else:
            _, graph, crossing = graphs.halves
            given = [*self._given(graph), *crossing]
            function = functions.backward(graph, given, first)
        return function

    def _run(
        self, function: Callable[..., Any], given: list[Any], graph: TrainingGraph | None = None
    ) -> Any:
        if self._captured:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            with torch.no_grad(), forgetful():
                return function(*given)
        except Exception as error:
            raise _failure(error, graph) from error

    def _results(self, names: Sequence[str], values: Sequence[Any], batch: Batch) -> TorchResults:
        """Results in memory of their own, which no later step writes to."""
        if self._captured:
            values = [value.clone() if isinstance(value, Tensor) else value for value in values]
        taken = {*self._held, *map(storage_of, batch.tensors.values())}
        owned = [in_own_memory(value, taken) for value in values]
        return TorchResults(dict(zip(names, owned)), batch.as_numpy)


def _failure(error: Exception, graph: TrainingGraph | None) -> ProviderError | Exception:
    """What to say of a call that failed: the node, or the index that was out of range."""
    node = None if graph is None else graph.module.failed_node(error)
    if node is None:
        return ProviderError(f"torch failed: {error}")
    failed = NodeFailed(f"torch failed: {error} (at {node[0]}, node {node[1]!r})", node[0])
    return index_refusal(failed) or failed
