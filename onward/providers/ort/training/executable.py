"""OrtTraining: run a lowered training program on stock onnxruntime, with tensors in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, OptionError
from onward.programs.program import Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.bound_updates import BoundUpdates, TrainingGraphOpener
from onward.providers.ort.training.finite_check import is_finite
from onward.providers.ort.training.lowered import MEASURE, UPDATED, LoweredProgram
from onward.providers.ort.training.segmented_step import OrtSegmentedStep
from onward.providers.ort.training.step_buffers import StepBuffers
from onward.providers.ort.training.step_feeds import StepFeeds
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw, SegmentHooks

if TYPE_CHECKING:  # stores of one process do not need it
    from onward.providers.ort.training.part_store import NumpyPartStore


class OrtTraining:
    """A TrainingExecutable whose graphs are bound to the arrays of a NumpyStore."""

    lookahead = 1

    def __init__(
        self,
        program: LoweredProgram,
        opener: TrainingGraphOpener,
        store: NumpyStore | NumpyPartStore | None = None,  # None: a new one
        *,
        at_once: int | None = None,  # elements that one run of an update takes; None: all
        squared: bool = True,  # whether MEASURE is a sum of squares where updates clip by norm
    ) -> None:
        self._program, self._layout, self._opener = program, program.layout, opener
        if store is None:
            store = NumpyStore(program.layout, [update.blocks for update in program.updates])
        self.store: NumpyStore | NumpyPartStore = store
        self.finite = True
        self._updates = BoundUpdates(program, self.store, opener, at_once)
        self._buffers = StepBuffers(program, self.store.statistics, opener.open)
        self._segments = OrtSegmentedStep(program, self.store, opener, self._buffers, self._updates)
        self._feeds: dict[str, StepFeeds] = {}
        self._squared = squared or program.layout.settings.clip_norm is None
        self._is_measured = False  # whether the measure is of all accumulated gradients
        self._is_fused = program.step is not None

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._updates.set_rates(steps, rates)

    # -- training ------------------------------------------------------------------------------

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[dict[str, Array], bool] | None:
        if not self._open_fused_step():
            separate = self.compute_gradients(feeds, draw, scale, first=True)
            return None if separate is None else (separate, self.update(1, scale))
        bound = self._feeds["step"]
        bound.bind(feeds)
        if bound.is_empty:
            return None
        self._buffers.draw(bound.graph, feeds, draw)
        self._buffers.scale[...] = scale
        self._updates.begin(1, scale)
        results = self._buffers.results(bound.run(self._layout.outputs))
        if self._buffers.updated:
            self._buffers.updated[...] = False
            self._buffers.keep_statistics()
            self._updates.end(self._buffers.measure)
            return results, True
        self._accumulate(first=True)
        return results, self.update(1, scale)

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> dict[str, Array] | None:
        bound = self._open("train")
        bound.bind(feeds)
        if bound.is_empty:
            return None
        self._buffers.draw(bound.graph, feeds, draw)
        self._buffers.scale[...] = scale
        self._updates.bind_gradients(bound.graph, first)
        try:
            results = self._buffers.results(bound.run(self._layout.outputs))
        except OnwardError:
            if first:  # they may be half written
                self.store.clear_gradients()
            raise
        self._accumulate(first)
        return results

    def results_of_empty(self) -> dict[str, Array]:
        """Results for the empty batch that was just skipped."""
        names = self._layout.results_of("train")
        return dict(zip(names, self._open("train").results_of_empty(names)))

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> dict[str, Array] | None:
        return self._segments.forward(self._segments.open_halves(), feeds, draw)

    def backward(self, scale: float, first: bool) -> None:
        segments = self._segments.halves
        if segments is not None and segments.is_empty:
            return
        if segments is None or not segments.is_ready:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        self._buffers.scale[...] = scale
        self._updates.bind_gradients(segments, first)
        for i in segments.backward:
            segments.run(i)
        self._accumulate(first)

    # -- in segments ---------------------------------------------------------------------------

    @property
    def all_reduce(self) -> Callable[[Array], None] | None:
        """Sums an array over processes, in place."""
        return self._segments.all_reduce

    @all_reduce.setter
    def all_reduce(self, all_reduce: Callable[[Array], None] | None) -> None:
        self._segments.all_reduce = all_reduce

    def run_forward_segments(
        self, feeds: Mapping[str, Any], draw: Draw, first: bool, hooks: SegmentHooks
    ) -> dict[str, Array] | None:
        return self._segments.forward(self._segments.open("train"), feeds, draw, hooks.before)

    def run_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        self._segments.backward(first, hooks)

    def skip_forward_segments(self, hooks: SegmentHooks) -> dict[str, Array]:
        return self._segments.skip_forward(hooks)

    def skip_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        self._segments.skip_backward(first, hooks)

    def infer_segments(
        self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks
    ) -> dict[str, Array]:
        return self._segments.infer(graph, feeds, hooks)

    def segment_reads(self, graph: str) -> list[tuple[int, ...]]:
        return self._segments.open(graph).reads

    def gradients_reduced(self, squares: float, finite: bool) -> None:
        self._updates.set_squares(squares)
        self.finite = finite

    def keep_statistics(self, finite: bool) -> None:
        """Keep the statistics of the last batch, unless it is to be skipped."""
        if finite or not self._layout.settings.skip_nonfinite:
            self._buffers.keep_statistics()

    def fresh_statistics(self) -> list[Array]:
        """The statistics of the last batch, before they are kept."""
        return list(self._buffers.fresh.values())

    # -- the update ----------------------------------------------------------------------------

    def _accumulate(self, first: bool) -> None:
        """After a micro-batch: add its gradients, and keep its statistics if all is finite."""
        buffers = self._buffers
        finite = math.isfinite(buffers.loss) and self._updates.are_finite(buffers.measure, first)
        self._updates.add_gradients(first)
        self._is_measured = first and self._squared
        if not first:  # a sum may overflow where its terms do not
            summed = all(map(is_finite, self.store.gradient_buffers()))
            self.finite = self.finite and finite and summed
        else:
            self.finite = finite
        if not self._layout.settings.skip_nonfinite or (finite and buffers.is_fresh_finite()):
            buffers.keep_statistics()

    def gradients_changed(self) -> None:
        self._is_measured = False
        self.finite = all(map(is_finite, self.store.gradient_buffers()))

    def update(self, micro: int, scale: float) -> bool:
        finite = self.finite
        if finite or not self._layout.settings.skip_nonfinite:
            measure = self._buffers.measure if self._is_measured and micro == 1 else None
            self._updates.run(measure, micro, scale)
        self.finite = True
        return finite

    def gradient_norm(self) -> float:
        return self._updates.last_norm()

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        names = self._layout.results_of("evaluate")
        bound = self._open("evaluate")
        bound.bind(feeds)
        if bound.is_empty:
            return dict(zip(names, bound.results_of_empty(names)))
        return dict(zip(names, bound.run(names)))

    def predict(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        names = self._layout.model_outputs
        bound = self._open("predict")
        bound.bind(feeds)
        return dict(zip(names, bound.run(names)))

    # -- graphs --------------------------------------------------------------------------------

    def _open_fused_step(self) -> bool:
        """Open the fused step if possible; if it is not, it is not tried again."""
        if self._is_fused and "step" not in self._feeds:
            graph = self._opener.open_fused_step()
            self._is_fused = graph is not None
            if graph is not None:
                self._updates.bind_fused_step(graph)
                graph.bind_output(UPDATED, self._buffers.updated)
                self._bind("step", graph)
        return self._is_fused

    def _open(self, name: str) -> StepFeeds:
        """A graph bound to the store; opened at its first use."""
        if name not in self._feeds:
            self._bind(name, self._opener.open(getattr(self._program, name)))
        return self._feeds[name]

    def _bind(self, name: str, graph: BoundGraph) -> None:
        self._feeds[name] = StepFeeds(graph, self._layout, self.store)
        if name in ("train", "step"):
            self._buffers.bind(graph)
            graph.bind_output(MEASURE, self._buffers.measure)
