"""TorchTraining: runs a training program in torch, eager or compiled, its state on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onward.errors import NodeFailed, OptionError, ProviderError
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.bucket_parts import Sharding
from onward.programs.feed_rules import select_results
from onward.programs.label_ranges import index_refusal
from onward.programs.program import LOSS, Program
from onward.providers.provider import Draw, Provider, SegmentHooks
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.prepared_weights import without_weight_cache
from onward.providers.torch.provider import TorchProvider, in_own_memory, storage_of
from onward.providers.torch.tensors import to_torch
from onward.providers.torch.training.captured_calls import CapturedCalls
from onward.providers.torch.training.function_writer import are_finite, sum_of_squares
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs, lower_program
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.results import TorchResults
from onward.providers.torch.training.segments import TorchSegments
from onward.providers.torch.training.step_feeds import Batch, TorchFeeds, to_device
from onward.providers.torch.training.step_functions import StepFunctions
from onward.providers.torch.training.step_scalars import StepScalars
from onward.providers.torch.training.store import TorchStore, view_in


def open_program(
    program: Program, provider: Provider, sharding: Sharding | None = None
) -> TorchTraining | None:
    """Open a program on a torch provider; None where torch lacks one of its operators.

    `sharding`: which parts of the vectors this process of many holds; None: all.
    """
    assert isinstance(provider, TorchProvider)
    graphs = lower_program(program, provider)
    return None if graphs is None else TorchTraining(graphs, provider, sharding)


@dataclass(frozen=True)
class _RunGraph:
    """A graph for evaluation or prediction, its feeds and its function."""

    graph: TorchGraph
    feeds: TorchFeeds
    function: Callable[..., Any]


@dataclass(frozen=True)
class _ForwardPass:
    """What `forward` keeps for `backward`."""

    batch: Batch
    values: dict[str, Any]


class TorchTraining:
    """A TrainingExecutable whose steps copy nothing to the host, and never wait for the device.

    Whether gradients are finite, the count of updates and the learning rates of the next ones are
    on the device, too; an update with gradients that are not finite changes no tensor.
    """

    lookahead = 32

    def __init__(
        self, graphs: TorchGraphs, provider: TorchProvider, sharding: Sharding | None = None
    ) -> None:
        self._graphs, self._layout = graphs, graphs.layout
        self._device = provider.device
        # CUDA graphs need tensors that stay in their memory, which sharded ones do not
        self._keeps_memory = provider.captures_steps and sharding is None
        with torch.no_grad():
            self.store: TorchStore | TorchPartStore
            if sharding is None:
                self.store, where = TorchStore(self._layout, self._device), self._device
            else:
                self.store = TorchPartStore(self._layout, sharding, self._device)
                where = self.store.update_device
            self._scalars = StepScalars(self._layout, self._device, self.lookahead, where)
        compiler = provider.ordered_compiler if graphs.in_order else provider.step_compiler
        self._functions = StepFunctions(
            self._layout, self.store, self._scalars, compiler, self._keeps_memory
        )
        compiles = compiler is not None
        self._is_whole = compiles and sharding is None and not self._layout.sums
        records = self._keeps_memory and self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if records else None
        self._has_squares = False  # whether the last update has left those of its gradients
        self._train_feeds = TorchFeeds(graphs.train, self._layout, self._device)
        self._built: dict[tuple[str, bool], Callable[..., Any]] = {}
        self._run_graphs: dict[str, _RunGraph] = {}
        self._forward_pass: _ForwardPass | None = None
        self._segments: TorchSegments | None = None
        self._fresh = [torch.zeros_like(each.vector) for each in self.store.state]
        self._inferences: dict[str, TorchSegments] = {}  # of `infer_segments`
        self._last_batch: Batch | None = None  # of `run_forward_segments`
        self._squares: float | None = None  # of the gradients of all processes, if told
        self.all_reduce: Callable[[Tensor], None] | None = None  # over processes, in place
        self._gradient_factor = 1.0  # factor of the last update's gradients
        owned = [t.parameters for t in self.store.updates]
        owned += [*(each.vector for each in self.store.state), *self.store.frozen.values()]
        self._owned_storage = {storage_of(tensor) for tensor in owned}

    # -- progress ------------------------------------------------------------------------------

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        table = torch.tensor([list(ahead) for ahead in rates], dtype=torch.float64)
        self._scalars.rates.copy_(to_device(table, self._scalars.rates.device))
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
                self._scalars.squares.copy_(sum_of_squares(buffers))

    def gradient_norm(self) -> float:
        squares = self._squares
        if self._has_squares:
            squares = float(self._scalars.squares)
        if squares is None:
            squares = float(sum_of_squares(self.store.gradient_buffers()))
        kept = self._scalars.kept_scale
        return math.sqrt(squares) * (self._gradient_factor if kept is None else kept.factor())

    def keep_scale(self, rule: DynamicLossScale, state: Mapping[str, float | int]) -> None:
        self._scalars.keep_scale(rule, state)

    def scale_state(self) -> dict[str, float | int]:
        assert self._scalars.kept_scale is not None
        return self._scalars.kept_scale.state()

    # -- training ------------------------------------------------------------------------------

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[TorchResults, Tensor] | None:
        if not self._is_whole:
            results = self.compute_gradients(feeds, draw, scale, first=True)
            return None if results is None else (results, self.update(1, scale))
        batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            return None
        self._begin_batch(draw, scale)
        self._set_factor(1, scale)
        self._free_gradients()
        given = [batch.tensors[name] for name in self._feed_names(self._graphs.train)]
        shown, finite = self._call(self._function("step", True), given, self._graphs.train)
        self._scalars.draw_advanced()
        self._has_squares = True
        return self._results((LOSS, *self._layout.outputs), shown, batch), finite

    def _begin_batch(self, draw: Draw, scale: float) -> None:
        self._scalars.write_scale(scale)
        self._scalars.write_draw(draw)

    def _set_factor(self, micro: int, scale: float) -> None:
        """Set the factor of the gradients of an update."""
        if self._scalars.kept_scale is not None:
            self._scalars.kept_scale.set_micro(micro)
            return
        self._gradient_factor = factor = 1.0 / (micro * scale)
        if self._layout.settings.scaled:
            for tensor in self._scalars.factors:
                self._scalars.write(tensor, factor)

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> TorchResults | None:
        batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            return None
        self._begin_batch(draw, scale)
        self._has_squares = False
        given = [batch.tensors[name] for name in self._feed_names(self._graphs.train)]
        given += self._gradients_so_far(first)
        function = self._function("compute_gradients", first)
        shown, gradients = self._call(function, given, self._graphs.train)
        self._store_gradients(gradients)
        return self._results((LOSS, *self._layout.outputs), shown, batch)

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> TorchResults | None:
        if self._layout.sums:
            results = self._begin_segments(feeds, draw)
            assert self._last_batch is not None
            self._forward_pass = _ForwardPass(self._last_batch, {})
            return results
        batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            self._forward_pass = _ForwardPass(batch, {})
            return None
        graph, _, crossing = self._graphs.forward_backward
        self._scalars.write_draw(draw)
        function = self._function("forward", True)
        given = [batch.tensors[name] for name in self._feed_names(graph)]
        made = self._call(function, given, graph)
        names = self._forward_results(crossing)
        values = dict(zip(names, made))
        self._forward_pass = _ForwardPass(batch, values)
        shown = (LOSS, *self._layout.outputs)
        return self._results(shown, [values[name] for name in shown], batch)

    def backward(self, scale: float, first: bool) -> None:
        forward_pass = self._forward_pass
        if forward_pass is not None and forward_pass.batch.is_empty:
            return
        if forward_pass is None:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        self._scalars.write_scale(scale)
        if self._layout.sums:
            self._run_updates(first)
            return
        _, graph, crossing = self._graphs.forward_backward
        tensors = {**forward_pass.batch.tensors, **forward_pass.values}
        given = [tensors[name] for name in (*self._feed_names(graph), *crossing)]
        given.append(forward_pass.values[LOSS])
        given += [forward_pass.values[name] for name in self._layout.state.values()]
        given += self._gradients_so_far(first)
        self._forward_pass = None
        gradients = self._call(self._function("backward", first), given, graph)
        self._store_gradients(gradients)

    def update(self, micro: int, scale: float) -> Tensor:
        self._set_factor(micro, scale)
        buffers = self.store.gradient_buffers()
        if not self._layout.settings.scaled and self._gradient_factor != 1.0:
            for buffer in buffers:  # more micro-batches than the program was built for
                buffer.mul_(self._gradient_factor)
            self._gradient_factor = 1.0
        finite: Tensor = self._call(self._function("update", True), buffers)
        return finite

    # -- in segments ---------------------------------------------------------------------------

    def run_forward_segments(
        self, feeds: Mapping[str, Any], draw: Draw, first: bool, hooks: SegmentHooks
    ) -> TorchResults | None:
        return self._begin_segments(feeds, draw, hooks.before, frees_gradients=first)

    def run_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        self._scalars.write_scale(hooks.scale())
        for update, i in enumerate(self._open_segments().backward):
            hooks.before(i)
            self._run_update(update, first)
            hooks.after(update)

    def skip_forward_segments(self, hooks: SegmentHooks) -> TorchResults:
        assert self._last_batch is not None
        segments = self._open_segments()
        for i in segments.forward:
            hooks.before(i)
            segments.skip(i)
        names = (LOSS, *self._layout.outputs)
        return self._results_of_empty(
            self._graphs.train, self._train_feeds, names, self._last_batch
        )

    def skip_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        segments = self._open_segments()
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            if first:
                self.store.updates[update].gradient_vector().zero_()
            segments.skip(i)
            hooks.after(update)

    def infer_segments(
        self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks
    ) -> TorchResults:
        segments, wanted = self._open_inference(graph), self._shown(graph)
        opened: TorchGraph = getattr(self._graphs, graph)
        reader = TorchFeeds(opened, self._layout, self._device)
        batch = reader.read(feeds)
        if batch.is_empty and graph == "evaluate":
            for i in segments.forward:
                hooks.before(i)
            return self._results_of_empty(opened, reader, wanted, batch)
        segments.begin(batch.tensors)
        made = segments.run_forward(self._call, hooks.before)
        return self._results(wanted, [made[name] for name in wanted], batch)

    def segment_reads(self, graph: str) -> list[tuple[int, ...]]:
        opened = self._open_segments() if graph == "train" else self._open_inference(graph)
        return opened.reads

    def gradients_reduced(self, squares: float, finite: bool) -> None:
        self._squares = squares
        self._scalars.squares.fill_(squares)
        self._scalars.flag.fill_(finite)

    def _open_inference(self, graph: str) -> TorchSegments:
        if graph not in self._inferences:
            model = getattr(self._graphs, graph).model
            names = list(dict.fromkeys(self._shown(graph)))
            self._inferences[graph] = TorchSegments(model, self._graphs, self._functions, names)
        return self._inferences[graph]

    def _shown(self, graph: str) -> tuple[str, ...]:
        """The results of `evaluate` or `predict`."""
        layout = self._layout
        return layout.model_outputs if graph == "predict" else (LOSS, *layout.outputs)

    def _begin_segments(
        self,
        feeds: Mapping[str, Any],
        draw: Draw,
        before: Callable[[int], None] = lambda segment: None,
        *,
        frees_gradients: bool = False,
    ) -> TorchResults | None:
        """Run the forward pass; None for an empty batch."""
        self._last_batch = batch = self._train_feeds.read(feeds)
        if batch.is_empty:
            return None
        if frees_gradients:
            self._gradients_so_far(first=True)
        self._scalars.write_draw(draw)
        segments = self._open_segments()
        segments.begin(batch.tensors)
        made = segments.run_forward(self._call, before)
        self._copy_statistics(made)
        shown = (LOSS, *self._layout.outputs)
        return self._results(shown, [made[name] for name in shown], batch)

    def _run_updates(self, first: bool) -> None:
        """Compute all gradients; keep the statistics of the forward pass if all are finite."""
        self._forward_pass = None
        self._gradients_so_far(first)
        for i in range(len(self.store.updates)):
            self._run_update(i, first)
        self.gradients_changed()
        self.keep_statistics(self.finite)

    def _run_update(self, i: int, first: bool) -> None:
        """Compute the gradients of an update after the forward pass."""
        tensors = self.store.updates[i]
        held = None if first or self._keeps_memory else tensors.gradient_vector()
        gradients = self._open_segments().run_update(i, self._call, held, first=first)
        if not self._keeps_memory:
            tensors.gradients = gradients

    def fresh_statistics(self) -> list[Tensor]:
        """The statistics of the last batch, before they are kept: a vector for each type."""
        return self._fresh

    def keep_statistics(self, finite: bool) -> None:
        """Keep the statistics of the last batch, unless it is to be skipped."""
        if finite or not self._layout.settings.skip_nonfinite:
            for each, fresh in zip(self.store.state, self._fresh):
                each.vector.copy_(fresh)

    def _open_segments(self) -> TorchSegments:
        """The train graph in segments: the forward pass, and one for each update."""
        if self._segments is None:
            layout = self._layout
            results = [LOSS, *layout.outputs, *layout.state.values()]
            updates = [[layout.gradients[n] for n in u.parameters] for u in layout.updates]
            self._segments = TorchSegments(
                self._graphs.train.model,
                self._graphs,
                self._functions,
                results,
                updates,
                layout.sums,
                self.all_reduce,
            )
        return self._segments

    def _copy_statistics(self, made: Mapping[str, Tensor]) -> None:
        """Copy the new statistics of a forward pass to vectors of their own."""
        for each, fresh in zip(self.store.state, self._fresh):
            views = [view_in(fresh, each.places, name) for name in each.places.shapes]
            torch._foreach_copy_(views, [made[self._layout.state[n]] for n in each.places.shapes])

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> TorchResults:
        return self._run_graph("evaluate", (LOSS, *self._layout.outputs), feeds)

    def predict(self, feeds: Mapping[str, Any]) -> TorchResults:
        return self._run_graph("predict", self._layout.model_outputs, feeds)

    def _run_graph(
        self, name: str, wanted: Sequence[str], feeds: Mapping[str, Any]
    ) -> TorchResults:
        if name not in self._run_graphs:
            graph: TorchGraph = getattr(self._graphs, name)
            reader = TorchFeeds(graph, self._layout, self._device)
            function = self._functions.run(graph, self._feed_names(graph), wanted)
            function = self._recorded(function)
            self._run_graphs[name] = _RunGraph(graph, reader, function)
        opened = self._run_graphs[name]
        batch = opened.feeds.read(feeds)
        if batch.is_empty and name == "evaluate":
            return self._results_of_empty(opened.graph, opened.feeds, wanted, batch)
        given = [batch.tensors[each] for each in self._feed_names(opened.graph)]
        return self._results(wanted, self._call(opened.function, given, opened.graph), batch)

    def _results_of_empty(
        self, graph: TorchGraph, feeds: TorchFeeds, wanted: Sequence[str], batch: Batch
    ) -> TorchResults:
        """NaN for the loss, outputs without samples."""
        results = select_results(graph.results, wanted)
        arrays = feeds.rules.results_of_empty(results, batch.shapes)
        empty = [to_torch(array, self._device) for array in arrays]
        return TorchResults(dict(zip(wanted, empty)), batch.as_numpy)

    # -- functions -----------------------------------------------------------------------------

    def _feed_names(self, graph: TorchGraph) -> list[str]:
        """The inputs of a graph that are feeds."""
        return [name for name in self._layout.fed if name in graph.inputs]

    def _gradients_so_far(self, first: bool) -> list[Tensor]:
        """The gradients to add to; none, and their memory freed, at the first micro-batch."""
        if self._keeps_memory:
            return []
        if not first:
            return self.store.gradient_buffers()
        self._free_gradients()
        return []

    def _free_gradients(self) -> None:
        if not self._keeps_memory:
            for tensors in self.store.updates:
                tensors.gradients = None

    def _store_gradients(self, gradients: Sequence[Tensor]) -> None:
        if not self._keeps_memory:
            for tensors, vector in zip(self.store.updates, gradients):
                tensors.gradients = vector

    def _function(self, name: str, first: bool) -> Callable[..., Any]:
        """A function of the step, written at its first use."""
        if (name, first) not in self._built:
            self._built[name, first] = self._recorded(self._write_function(name, first))
        return self._built[name, first]

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as CUDA graphs, if this provider records them."""
        return function if self._pool is None else CapturedCalls(function, self._pool)

    def _write_function(self, name: str, first: bool) -> Callable[..., Any]:
        functions, graphs = self._functions, self._graphs
        function: Callable[..., Any]
        if name == "step":
            function = functions.step(graphs.train, self._feed_names(graphs.train), graphs.updates)
        elif name == "update":
            function = functions.update(graphs.updates)
        elif name == "compute_gradients":
            given = self._feed_names(graphs.train)
            function = functions.compute_gradients(graphs.train, given, first)
        elif name == "forward":
            graph, _, crossing = graphs.forward_backward
            wanted = self._forward_results(crossing)
            function = functions.run(graph, self._feed_names(graph), wanted)
        else:
            _, graph, crossing = graphs.forward_backward
            given = [*self._feed_names(graph), *crossing]
            function = functions.backward(graph, given, first)
        return function

    def _forward_results(self, crossing: Sequence[str]) -> list[str]:
        """The results of the forward function: what users see, and what the backward reads."""
        names = (LOSS, *self._layout.outputs, *self._layout.state.values(), *crossing)
        return list(dict.fromkeys(names))

    def _call(
        self, function: Callable[..., Any], given: list[Any], graph: TorchGraph | None = None
    ) -> Any:
        try:
            with torch.no_grad(), without_weight_cache():
                return function(*given)
        except Exception as error:
            raise _failure(error, graph) from error

    def _results(self, names: Sequence[str], values: Sequence[Any], batch: Batch) -> TorchResults:
        """Results in their own memory, which no later step overwrites."""
        taken = {*self._owned_storage, *map(storage_of, batch.tensors.values())}
        owned = [in_own_memory(value, taken) for value in values]
        return TorchResults(dict(zip(names, owned)), batch.as_numpy)


def _failure(error: Exception, graph: TorchGraph | None) -> ProviderError | Exception:
    """The error of a failed call: names the node, or the index that is out of range."""
    node = None if graph is None else graph.module.failed_node(error)
    if node is None:
        return ProviderError(f"torch failed: {error}")
    failed = NodeFailed(f"torch failed: {error} (at {node[0]}, node {node[1]!r})", node[0])
    return index_refusal(failed) or failed
