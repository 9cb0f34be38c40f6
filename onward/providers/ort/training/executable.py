"""OrtTraining: run a lowered training program on stock onnxruntime, with tensors in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import OnwardError, OptionError
from onward.lazy import LazyModule
from onward.programs.program import DRAW, LOSS, SCALE, Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.bound_updates import BoundUpdates, TrainingGraphOpener
from onward.providers.ort.training.finite_check import is_finite
from onward.providers.ort.training.lowered import MEASURE, NOISE, UPDATED, LoweredProgram
from onward.providers.ort.training.step_feeds import StepFeeds, UniformNoise
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw, SegmentHooks

if TYPE_CHECKING:
    from onward.providers.ort.training import segments as splitting
    from onward.providers.ort.training.part_store import NumpyPartStore
else:  # it loads onnx, which a device may not have
    splitting = LazyModule("onward.providers.ort.training.segments")


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
        self._noise = UniformNoise(program, opener.open)
        self._feeds: dict[str, StepFeeds] = {}
        self._loss = np.zeros((), self._layout.settings.loss_dtype)
        self._measure = np.zeros((), np.float32)
        self._squared = squared or program.layout.settings.clip_norm is None
        self._is_measured = False  # whether `_measure` is of all accumulated gradients
        self._scale = np.ones((), np.float32)
        self._position = np.zeros(3, np.int64)  # of the random numbers that a graph draws itself
        self._is_position_read = False
        self._fresh = {n: np.empty_like(t) for n, t in self.store.statistics.items()}
        self._updated = np.zeros((), np.bool_)  # whether a step in one run has updated
        self._is_fused = program.step is not None
        self._segments: splitting.Segments | None = None  # of `forward` and `backward`
        self._buckets: splitting.Segments | None = None  # of `run_forward_segments`
        self.all_reduce: Callable[[Array], None] | None = None  # over processes, in place
        self._inferences: dict[str, splitting.Segments] = {}  # of `infer_segments`

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
        self._draw(bound.graph, feeds, draw)
        self._scale[...] = scale
        self._updates.begin(1, scale)
        results = self._results(bound.run(self._layout.outputs))
        if self._updated:
            self._updated[...] = False
            self._keep_statistics()
            self._updates.end(self._measure)
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
        self._draw(bound.graph, feeds, draw)
        self._scale[...] = scale
        self._updates.bind_gradients(bound.graph, first)
        try:
            results = self._results(bound.run(self._layout.outputs))
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
        if self._segments is None:
            gradients = [*(p.gradient for p in self._layout.parameters), MEASURE]
            self._segments = self._open_segments([gradients])
            self._segments.bind_output(MEASURE, self._measure)
        segments = self._segments
        if not self._begin(segments, feeds, draw):
            return None
        for i in segments.forward:
            segments.run(i)
        return self._results(segments.shown())

    def backward(self, scale: float, first: bool) -> None:
        segments = self._segments
        if segments is not None and segments.is_empty:
            return
        if segments is None or not segments.is_ready:
            raise OptionError("run_backward needs a forward pass\ncall run_forward first")
        self._scale[...] = scale
        self._updates.bind_gradients(segments, first)
        for i in segments.backward:
            segments.run(i)
        self._accumulate(first)

    # -- in segments ---------------------------------------------------------------------------

    def run_forward_segments(
        self, feeds: Mapping[str, Any], draw: Draw, first: bool, hooks: SegmentHooks
    ) -> dict[str, Array] | None:
        segments = self._open_buckets()
        if not self._begin(segments, feeds, draw):
            return None
        for i in segments.forward:
            hooks.before(i)
            segments.run(i)
        return self._results(segments.shown())

    def run_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        segments = self._open_buckets()
        self._scale[...] = hooks.scale()
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            self._updates.bind_bucket(segments, i, update, first)
            segments.run(i)
            self._updates.add_bucket(update, first)
            hooks.after(update)

    def skip_forward_segments(self, hooks: SegmentHooks) -> dict[str, Array]:
        segments = self._open_buckets()
        for i in segments.forward:
            hooks.before(i)
            segments.skip(i)
        names = self._layout.results_of("train")
        return dict(zip(names, segments.results_of_empty(names)))

    def skip_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        segments = self._open_buckets()
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            if first:
                self.store.hold_gradients(update)[...] = 0
            segments.skip(i)
            hooks.after(update)

    def infer_segments(
        self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks
    ) -> dict[str, Array]:
        segments, names = self._open_inference(graph), self._layout.results_of(graph)
        segments.bind_feeds(feeds)
        is_run = graph == "predict" or not segments.is_empty
        for i in segments.forward:
            hooks.before(i)
            if is_run:
                segments.run(i)
        found = segments.shown() if is_run else segments.results_of_empty(names)
        return dict(zip(names, found))

    def segment_reads(self, graph: str) -> list[tuple[int, ...]]:
        if graph == "train":
            return self._open_buckets().reads
        return self._open_inference(graph).reads

    def gradients_reduced(self, squares: float, finite: bool) -> None:
        self._updates.set_squares(squares)
        self.finite = finite

    def _open_inference(self, graph: str) -> splitting.Segments:
        if graph not in self._inferences:
            names = list(dict.fromkeys(self._layout.results_of(graph)))
            self._inferences[graph] = splitting.Segments(
                getattr(self._program, graph),
                self._layout,
                self.store,
                self._opener.open,
                names,
                self._layout.results_of(graph),
            )
        return self._inferences[graph]

    def _open_buckets(self) -> splitting.Segments:
        """The train graph in segments: one for each update, after those of the forward pass."""
        if self._buckets is None:
            gradients = self._layout.gradients
            names = [[gradients[n] for n in u.parameters] for u in self._layout.updates]
            self._buckets = self._open_segments(names)
        return self._buckets

    def keep_statistics(self, finite: bool) -> None:
        """Keep the statistics of the last batch, unless it is to be skipped."""
        if finite or not self._layout.settings.skip_nonfinite:
            self._keep_statistics()

    def fresh_statistics(self) -> list[Array]:
        """The statistics of the last batch, before they are kept."""
        return list(self._fresh.values())

    def _open_segments(self, backward: Sequence[Sequence[str]]) -> splitting.Segments:
        """The train graph in segments: one of the forward pass, and these of the backward pass."""
        results = [LOSS, *self._layout.outputs, *self._layout.state.values()]
        opened = splitting.Segments(
            self._program.train,
            self._layout,
            self.store,
            self._opener.open,
            results,
            self._layout.outputs,
            backward,
            self._layout.sums,
            self.all_reduce,
        )
        opened.bind_output(LOSS, self._loss)
        for kept, output in self._layout.state.items():
            opened.bind_output(output, self._fresh[kept])
        opened.bind_input(SCALE, self._scale)
        self._is_position_read |= opened.bind_input(DRAW, self._position)
        return opened

    def _begin(self, segments: splitting.Segments, feeds: Mapping[str, Any], draw: Draw) -> bool:
        """Bind a batch and its random numbers; False if it is empty."""
        segments.bind_feeds(feeds)
        if segments.is_empty:
            return False
        if self._noise.needed:
            segments.bind_noise(self._noise.draw(feeds, draw))
        self._set_position(draw)
        return True

    def _accumulate(self, first: bool) -> None:
        """After a micro-batch: add its gradients, and keep its statistics if all is finite."""
        finite = math.isfinite(self._loss) and self._updates.are_finite(self._measure, first)
        self._updates.add_gradients(first)
        self._is_measured = first and self._squared
        if not first:  # a sum may overflow where its terms do not
            summed = all(map(is_finite, self.store.gradient_buffers()))
            self.finite = self.finite and finite and summed
        else:
            self.finite = finite
        if not self._layout.settings.skip_nonfinite or (finite and self._is_fresh_finite()):
            self._keep_statistics()

    def gradients_changed(self) -> None:
        self._is_measured = False
        self.finite = all(map(is_finite, self.store.gradient_buffers()))

    def update(self, micro: int, scale: float) -> bool:
        finite = self.finite
        if finite or not self._layout.settings.skip_nonfinite:
            measure = self._measure if self._is_measured and micro == 1 else None
            self._updates.run(measure, micro, scale)
        self.finite = True
        return finite

    def gradient_norm(self) -> float:
        return self._updates.last_norm()

    def _is_fresh_finite(self) -> bool:
        """Whether the new statistics are finite: a variance may overflow where no gradient does."""
        return all(map(is_finite, self._fresh.values()))

    def _keep_statistics(self) -> None:
        for name, fresh in self._fresh.items():
            np.copyto(self.store.statistics[name], fresh)

    def _results(self, others: Sequence[Array]) -> dict[str, Array]:
        return {LOSS: self._loss.copy(), **dict(zip(self._layout.outputs, others))}

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
                graph.bind_output(UPDATED, self._updated)
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
            self._bind_results(graph)
            self._bind_inputs(graph)
            graph.bind_output(MEASURE, self._measure)

    def _bind_results(self, graph: BoundGraph) -> None:
        """Bind the outputs of a forward pass: the loss and the new statistics."""
        graph.bind_output(LOSS, self._loss)
        for kept, output in self._layout.state.items():
            graph.bind_output(output, self._fresh[kept])

    def _bind_inputs(self, graph: BoundGraph) -> None:
        """Bind the inputs that only some programs have: the loss scale, the position of draws."""
        names = {argument.name for argument in graph.arguments()}
        if SCALE in names:
            graph.bind_input(SCALE, self._scale)
        if DRAW in names:
            graph.bind_input(DRAW, self._position)
            self._is_position_read = True

    def _draw(self, graph: BoundGraph, feeds: Mapping[str, Any], draw: Draw) -> None:
        if self._noise.needed:
            graph.bind_input(NOISE, self._noise.draw(feeds, draw))
        self._set_position(draw)

    def _set_position(self, draw: Draw) -> None:
        if self._is_position_read:
            self._position[...] = draw
