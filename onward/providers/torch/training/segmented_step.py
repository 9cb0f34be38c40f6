"""SegmentedStep: runs the graphs of a program in segments, with hooks between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from onward.providers.provider import SegmentHooks
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.training.gradient_memory import GradientMemory
from onward.providers.torch.training.lowering import TorchGraphs
from onward.providers.torch.training.segments import AllReduce, TorchSegments
from onward.providers.torch.training.step_calls import call
from onward.providers.torch.training.step_feeds import Batch
from onward.providers.torch.training.step_functions import StepFunctions
from onward.providers.torch.training.store import view_in

Hook = Callable[[int], None]  # of a segment, or of an update


def do_nothing(_: int) -> None:
    """The hook of a process that trains by itself."""


class SegmentedStep:
    """The forward pass of a batch, then the gradients of one update after the other.

    Segments are opened at their first use, with the `all_reduce` that is set by then.
    """

    def __init__(
        self, graphs: TorchGraphs, functions: StepFunctions, gradients: GradientMemory
    ) -> None:
        self._graphs, self._layout, self._functions = graphs, graphs.layout, functions
        self._state, self._gradients = functions.store.state, gradients
        self._opened: dict[str, TorchSegments] = {}
        self.all_reduce: AllReduce | None = None  # over processes, in place
        # the statistics of the last batch, before they are kept: a vector for each type
        self.fresh = [torch.zeros_like(each.vector) for each in self._state]

    def open(self, graph: str) -> TorchSegments:
        """The segments of "train", "evaluate" or "predict"."""
        if graph not in self._opened:
            self._opened[graph] = (
                self._open_train() if graph == "train" else self._open_inference(graph)
            )
        return self._opened[graph]

    def _open_train(self) -> TorchSegments:
        """The train graph in segments: the forward pass, and one for each update."""
        layout = self._layout
        return TorchSegments(
            self._graphs.train.model,
            self._graphs,
            self._functions,
            results=[*layout.results_of("train"), *layout.state.values()],
            updates=[[layout.gradients[n] for n in u.parameters] for u in layout.updates],
            sums=layout.sums,
            all_reduce=self.all_reduce,
        )

    def _open_inference(self, graph: str) -> TorchSegments:
        names = list(dict.fromkeys(self._layout.results_of(graph)))
        return TorchSegments(
            getattr(self._graphs, graph).model, self._graphs, self._functions, names
        )

    # -- a batch -------------------------------------------------------------------------------

    def forward(self, batch: Batch, before: Hook = do_nothing) -> dict[str, Any]:
        """Run the forward pass, with `before` each segment; its results."""
        made = self.infer("train", batch, before)
        self._copy_statistics(made)
        return made

    def infer(self, graph: str, batch: Batch, before: Hook) -> dict[str, Any]:
        """Run the segments before those of updates; their results."""
        segments = self.open(graph)
        segments.begin(batch.tensors)
        return segments.run_forward(call, before)

    def backward(self, first: bool, before: Hook = do_nothing, after: Hook = do_nothing) -> None:
        """Compute gradients; the hooks are called `before` each segment, `after` each update."""
        for update, i in enumerate(self.open("train").backward):
            before(i)
            self._compute_update(update, first)  # holds no vector that `after` may free
            after(update)

    def _compute_update(self, update: int, first: bool) -> None:
        held = self._gradients.begin_update(update, first)
        gradients = self.open("train").run_update(update, call, held, first=first)
        self._gradients.replace_update(update, gradients)

    # -- an empty batch ------------------------------------------------------------------------

    def skip_forward(self, hooks: SegmentHooks) -> None:
        """Take part in the sums over processes of the forward pass."""
        segments = self.open("train")
        for i in segments.forward:
            hooks.before(i)
            segments.skip(i)

    def skip_backward(self, first: bool, hooks: SegmentHooks) -> None:
        """Take part in the sums of the backward pass; the `first` gradients are zeros."""
        segments = self.open("train")
        for update, i in enumerate(segments.backward):
            hooks.before(i)
            if first:
                self._gradients.clear_update(update)
            segments.skip(i)
            hooks.after(update)

    # -- statistics ----------------------------------------------------------------------------

    def keep_statistics(self, finite: bool) -> None:
        """Keep the statistics of the last batch, unless it is to be skipped."""
        if finite or not self._layout.settings.skip_nonfinite:
            for each, fresh in zip(self._state, self.fresh):
                each.vector.copy_(fresh)

    def _copy_statistics(self, made: Mapping[str, Tensor]) -> None:
        """Copy the new statistics of a forward pass to vectors of their own."""
        for each, fresh in zip(self._state, self.fresh):
            views = [view_in(fresh, each.places, name) for name in each.places.shapes]
            torch._foreach_copy_(views, [made[self._layout.state[n]] for n in each.places.shapes])
