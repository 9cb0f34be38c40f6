"""TorchTraining: runs a training program in torch, eager or compiled, its state on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onward.errors import OptionError
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.bucket_parts import Sharding
from onward.programs.feed_rules import select_results
from onward.programs.program import Program
from onward.providers.provider import Draw, Flag, Provider, SegmentHooks
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.provider import TorchProvider, in_own_memory, storage_of
from onward.providers.torch.tensors import to_torch
from onward.providers.torch.training.function_writer import are_finite, sum_of_squares
from onward.providers.torch.training.gradient_memory import GradientMemory
from onward.providers.torch.training.lowering import TorchGraph, TorchGraphs, lower_program
from onward.providers.torch.training.packed_results import BufferedTensor
from onward.providers.torch.training.part_store import TorchPartStore
from onward.providers.torch.training.pending_flags import PendingFlags
from onward.providers.torch.training.results import TorchResults
from onward.providers.torch.training.segmented_step import SegmentedStep
from onward.providers.torch.training.segments import AllReduce
from onward.providers.torch.training.step_calls import StepCalls
from onward.providers.torch.training.step_feeds import Batch, TorchFeeds, to_device
from onward.providers.torch.training.step_functions import StepFunctions
from onward.providers.torch.training.step_scalars import StepScalars
from onward.providers.torch.training.store import TorchStore


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
        keeps_memory = provider.captures_steps and sharding is None
        with torch.no_grad():
            self.store: TorchStore | TorchPartStore
            if sharding is None:
                self.store, where = TorchStore(self._layout, self._device), self._device
            else:
                self.store = TorchPartStore(self._layout, sharding, self._device)
                where = self.store.update_device
            self._scalars = StepScalars(self._layout, self._device, self.lookahead, where)
        compiler = provider.ordered_compiler if graphs.in_order else provider.step_compiler
        functions = StepFunctions(self._layout, self.store, self._scalars, compiler, keeps_memory)
        records = keeps_memory and self._device.type == "cuda"
        self._calls = StepCalls(graphs, functions, records=records)
        self._flags = PendingFlags()
        self._gradients = GradientMemory(self.store, is_fixed=keeps_memory)
        self._segments = SegmentedStep(graphs, functions, self._gradients)
        compiles = compiler is not None
        self._is_whole = compiles and sharding is None and not self._layout.sums
        self._readers = {"train": TorchFeeds(graphs.train, self._layout, self._device)}
        self._has_squares = False  # whether the last update has left those of its gradients
        self._squares: float | None = None  # of the gradients of all processes, if set
        self._gradient_factor = 1.0  # factor of the last update's gradients
        self._forward_pass: _ForwardPass | None = None
        self._last_batch: Batch | None = None  # of `run_forward_segments`
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
    ) -> tuple[TorchResults, Flag] | None:
        if not self._is_whole:
            results = self.compute_gradients(feeds, draw, scale, first=True)
            return None if results is None else (results, self.update(1, scale))
        batch = self._read("train", feeds)
        if batch.is_empty:
            return None
        self._begin_batch(draw, scale)
        self._set_factor(1, scale)
        self._gradients.free()
        shown, finite = self._calls.step(batch)
        self._scalars.draw_advanced()
        self._has_squares = True
        return self._results("train", shown, batch), self._flags.add(finite)

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
        batch = self._read("train", feeds)
        if batch.is_empty:
            return None
        self._begin_batch(draw, scale)
        self._has_squares = False
        held = self._gradients.begin(first)
        shown, gradients = self._calls.compute_gradients(batch, held, first)
        self._gradients.replace(gradients)
        return self._results("train", shown, batch)

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> TorchResults | None:
        batch = self._read("train", feeds)
        if batch.is_empty:
            self._forward_pass = _ForwardPass(batch, {})
            return None
        self._scalars.write_draw(draw)
        kept: dict[str, Any] = {}
        if self._layout.sums:  # segments keep what they need themselves
            values = self._segments.forward(batch)
        else:
            values = kept = self._calls.forward(batch)
        self._forward_pass = _ForwardPass(batch, kept)
        return self._results("train", values, batch)

    def backward(self, scale: float, first: bool) -> None:
        forward_pass = self._forward_pass
        if forward_pass is None:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        if forward_pass.batch.is_empty:
            return
        self._scalars.write_scale(scale)
        self._forward_pass = None
        held = self._gradients.begin(first)
        if self._layout.sums:
            self._segments.backward(first)
            self.gradients_changed()
            self.keep_statistics(self.finite)
            return
        batch, values = forward_pass.batch, forward_pass.values
        self._gradients.replace(self._calls.backward(batch, values, held, first))

    def update(self, micro: int, scale: float) -> Tensor:
        self._set_factor(micro, scale)
        buffers = self.store.gradient_buffers()
        if not self._layout.settings.scaled and self._gradient_factor != 1.0:
            for buffer in buffers:  # more micro-batches than the program was built for
                buffer.mul_(self._gradient_factor)
            self._gradient_factor = 1.0
        return self._calls.update(buffers)

    # -- in segments ---------------------------------------------------------------------------

    @property
    def all_reduce(self) -> AllReduce | None:
        """Sums a tensor over processes, in place."""
        return self._segments.all_reduce

    @all_reduce.setter
    def all_reduce(self, all_reduce: AllReduce | None) -> None:
        self._segments.all_reduce = all_reduce

    def run_forward_segments(
        self, feeds: Mapping[str, Any], draw: Draw, first: bool, hooks: SegmentHooks
    ) -> TorchResults | None:
        self._last_batch = batch = self._read("train", feeds)
        if batch.is_empty:
            return None
        if first:
            self._gradients.free()
        self._scalars.write_draw(draw)
        return self._results("train", self._segments.forward(batch, hooks.before), batch)

    def run_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        self._scalars.write_scale(hooks.scale())
        self._segments.backward(first, hooks.before, hooks.after)

    def skip_forward_segments(self, hooks: SegmentHooks) -> TorchResults:
        assert self._last_batch is not None
        self._segments.skip_forward(hooks)
        return self._results_of_empty("train", self._last_batch)

    def skip_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        self._segments.skip_backward(first, hooks)

    def fresh_statistics(self) -> list[Tensor]:
        """The statistics of the last batch, before they are kept: a vector for each type."""
        return self._segments.fresh

    def keep_statistics(self, finite: bool) -> None:
        self._segments.keep_statistics(finite)

    def infer_segments(
        self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks
    ) -> TorchResults:
        batch = self._read(graph, feeds)
        if batch.is_empty and graph == "evaluate":
            for i in self._segments.open(graph).forward:
                hooks.before(i)
            return self._results_of_empty(graph, batch)
        return self._results(graph, self._segments.infer(graph, batch, hooks.before), batch)

    def segment_reads(self, graph: str) -> list[tuple[int, ...]]:
        return self._segments.open(graph).reads

    def gradients_reduced(self, squares: float, finite: bool) -> None:
        self._squares = squares
        self._scalars.squares.fill_(squares)
        self._scalars.flag.fill_(finite)

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> TorchResults:
        batch = self._read("evaluate", feeds)
        if batch.is_empty:
            return self._results_of_empty("evaluate", batch)
        return self._results("evaluate", self._calls.infer("evaluate", batch), batch)

    def predict(self, feeds: Mapping[str, Any]) -> TorchResults:
        batch = self._read("predict", feeds)
        return self._results("predict", self._calls.infer("predict", batch), batch)

    # -- feeds and results ---------------------------------------------------------------------

    def _read(self, graph: str, feeds: Mapping[str, Any]) -> Batch:
        if graph not in self._readers:
            opened: TorchGraph = getattr(self._graphs, graph)
            self._readers[graph] = TorchFeeds(opened, self._layout, self._device)
        return self._readers[graph].read(feeds)

    def _results_of_empty(self, graph: str, batch: Batch) -> TorchResults:
        """NaN for the loss, outputs without samples."""
        opened: TorchGraph = getattr(self._graphs, graph)
        names = self._layout.results_of(graph)
        results = select_results(opened.results, names)
        arrays = self._readers[graph].rules.results_of_empty(results, batch.shapes)
        empty = [to_torch(array, self._device) for array in arrays]
        return TorchResults(dict(zip(names, empty)), batch.as_numpy)

    def _results(self, graph: str, made: Mapping[str, Any], batch: Batch) -> TorchResults:
        """Results in their own memory, which no later step overwrites."""
        names = self._layout.results_of(graph)
        owned = {name: made[name] for name in names}
        if not all(type(each) is BufferedTensor for each in owned.values()):  # those are copies
            taken = {*self._owned_storage, *map(storage_of, batch.tensors.values())}
            owned = {name: in_own_memory(each, taken) for name, each in owned.items()}
        return TorchResults(owned, batch.as_numpy)
