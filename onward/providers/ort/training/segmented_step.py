"""OrtSegmentedStep: runs the graphs of a program in segments, with hooks between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.lazy import LazyModule
from onward.programs.program import LOSS, Array
from onward.providers.ort.training.bound_updates import BoundUpdates, TrainingGraphOpener
from onward.providers.ort.training.lowered import MEASURE, LoweredProgram
from onward.providers.ort.training.step_buffers import StepBuffers
from onward.providers.ort.training.store import NumpyStore
from onward.providers.provider import Draw, SegmentHooks

if TYPE_CHECKING:
    from onward.providers.ort.training import segments as splitting
    from onward.providers.ort.training.part_store import NumpyPartStore
else:  # it loads onnx, which a device may not have
    splitting = LazyModule("onward.providers.ort.training.segments")

Hook = Callable[[int], None]  # of a segment


def do_nothing(_: int) -> None:
    """The hook of a process that trains by itself."""


class OrtSegmentedStep:
    """The forward pass of a batch, then the gradients of one update after the other.

    Segments are opened at their first use, with the `all_reduce` that is set by then.
    """

    def __init__(
        self,
        program: LoweredProgram,
        store: NumpyStore | NumpyPartStore,
        opener: TrainingGraphOpener,
        buffers: StepBuffers,
        updates: BoundUpdates,
    ) -> None:
        self._program, self._layout, self._store = program, program.layout, store
        self._opener, self._buffers, self._updates = opener, buffers, updates
        self._opened: dict[str, splitting.Segments] = {}
        self.all_reduce: Callable[[Array], None] | None = None  # over processes, in place
        self.halves: splitting.Segments | None = None  # forward pass | backward pass

    def open_halves(self) -> splitting.Segments:
        """The train graph in two segments: the forward pass, and the backward pass."""
        if self.halves is None:
            gradients = [*(p.gradient for p in self._layout.parameters), MEASURE]
            self.halves = self._open_train([gradients])
            self.halves.bind_output(MEASURE, self._buffers.measure)
        return self.halves

    def open(self, graph: str) -> splitting.Segments:
        """The segments of "train", with one for each update, of "evaluate" or of "predict"."""
        if graph not in self._opened:
            is_train = graph == "train"
            self._opened[graph] = self._open_updates() if is_train else self._open_inference(graph)
        return self._opened[graph]

    def _open_updates(self) -> splitting.Segments:
        gradients = self._layout.gradients
        return self._open_train(
            [[gradients[n] for n in u.parameters] for u in self._layout.updates]
        )

    def _open_train(self, backward: Sequence[Sequence[str]]) -> splitting.Segments:
        """The train graph in segments: those of the forward pass, and these of the backward."""
        layout = self._layout
        opened = splitting.Segments(
            self._program.train,
            layout,
            self._store,
            self._opener.open,
            [LOSS, *layout.outputs, *layout.state.values()],
            layout.outputs,
            backward,
            layout.sums,
            self.all_reduce,
        )
        self._buffers.bind(opened)
        return opened

    def _open_inference(self, graph: str) -> splitting.Segments:
        names = self._layout.results_of(graph)
        data, unique = getattr(self._program, graph), list(dict.fromkeys(names))
        return splitting.Segments(data, self._layout, self._store, self._opener.open, unique, names)

    # -- a batch -------------------------------------------------------------------------------

    def forward(
        self,
        segments: splitting.Segments,
        feeds: Mapping[str, Any],
        draw: Draw,
        before: Hook = do_nothing,
    ) -> dict[str, Array] | None:
        """Run the forward pass, with `before` each segment; None if the batch is empty."""
        segments.bind_feeds(feeds)
        if segments.is_empty:
            return None
        self._buffers.draw(segments, feeds, draw)
        for i in segments.forward:
            before(i)
            segments.run(i)
        return self._buffers.results(segments.shown())

    def backward(self, first: bool, hooks: SegmentHooks) -> None:
        """Compute the gradients of one update after the other."""
        segments = self.open("train")
        self._buffers.scale[...] = hooks.scale()
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            self._updates.bind_bucket(segments, i, update, first)
            segments.run(i)
            self._updates.add_bucket(update, first)
            hooks.after(update)

    def infer(self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks) -> dict[str, Array]:
        """Evaluate or predict; an empty batch is evaluated without a run."""
        segments, names = self.open(graph), self._layout.results_of(graph)
        segments.bind_feeds(feeds)
        is_run = graph == "predict" or not segments.is_empty
        for i in segments.forward:
            hooks.before(i)
            if is_run:
                segments.run(i)
        found = segments.shown() if is_run else segments.results_of_empty(names)
        return dict(zip(names, found))

    # -- an empty batch ------------------------------------------------------------------------

    def skip_forward(self, hooks: SegmentHooks) -> dict[str, Array]:
        """Take part in the sums over processes of the forward pass; the results."""
        segments = self.open("train")
        for i in segments.forward:
            hooks.before(i)
            segments.skip(i)
        names = self._layout.results_of("train")
        return dict(zip(names, segments.results_of_empty(names)))

    def skip_backward(self, first: bool, hooks: SegmentHooks) -> None:
        """Take part in the sums of the backward pass; the `first` gradients are zeros."""
        segments = self.open("train")
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            if first:
                self._store.hold_gradients(update)[...] = 0
            segments.skip(i)
            hooks.after(update)
