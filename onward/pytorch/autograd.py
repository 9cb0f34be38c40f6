"""Hand the results and the gradients of captured graphs to PyTorch's autograd.

The forward graph runs before autograd sees anything. Then each segment of the backward graph is one
autograd function; a scalar links them, and the segment that runs first is the last in the chain:

    parameters of segment 2 -> [segment 2] -> link
    link, parameters of segment 1 -> [segment 1] -> results

In the backward pass autograd calls segment 1, accumulates its gradients (hooks of DDP and FSDP
run), and then calls segment 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from onward.errors import OptionError
from onward.pytorch.engines import Run

Tensor = torch.Tensor
Sources = dict[str, Collection[str]]  # result -> the inputs that it depends on
# for cotangents that were not expected: by result -> gradients by input
Recompute = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Segment:
    """A part of the backward graph."""

    run: Run
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gradients: Mapping[str, str]  # input of the forward -> the output that is its gradient


@dataclass(eq=False)
class Runs:
    """The functions of a call: its forward, and the segments of its backward."""

    forward: Run
    segments: tuple[Segment, ...]
    is_done: bool = False  # the backward has run, and cannot run again


@dataclass
class ForwardRun:
    """One run of the forward graph: what it computed, and what its backward needs."""

    values: dict[str, Tensor]  # inputs, outputs and saved values by name
    results: Sequence[str]  # the outputs that are returned
    fixed: frozenset[str]  # those that have no gradient
    cotangents: Mapping[str, str]  # output -> the input of the backward graph that is its cotangent
    sources: Sources
    runs: Runs
    recompute: Recompute | None  # None: all results with gradients are among the cotangents
    recompute_inputs: Sequence[str]
    between: dict[str, Tensor] = field(default_factory=dict)  # values that later segments read
    recomputed: Mapping[str, Tensor] | None = None
    reached: Collection[str] = ()  # the inputs that the results with a cotangent depend on


def attach(forward: ForwardRun, wrt: Mapping[str, Tensor]) -> list[Tensor]:
    """The results as tensors of autograd; `wrt` are the inputs that may have gradients."""
    link: Tensor | None = None
    first, *later = forward.runs.segments
    for segment in reversed(later):
        names = list(segment.gradients)
        link = _apply(forward, segment, link, names, *(wrt[name] for name in names))
    owned = {name for segment in later for name in segment.gradients}
    # others are there, too: a result that was not expected may have a cotangent
    names = [name for name in wrt if name not in owned]
    found = _apply(forward, first, link, names, *(wrt[name] for name in names))
    forward.values = {}  # autograd holds what the backward needs
    return list(found)


class _Segment(torch.autograd.Function):
    """One segment of the backward graph."""

    @staticmethod
    def forward(
        ctx: Any,
        forward: ForwardRun,
        segment: Segment,
        link: Tensor | None,
        inputs: Sequence[str],
        *tensors: Tensor,
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.inputs = inputs
        ctx.run, ctx.segment, ctx.has_link = forward, segment, link is not None
        ctx.is_first, ctx.device = segment is forward.runs.segments[0], tensors[0].device
        saved = dict.fromkeys(name for name in segment.inputs if name in forward.values)
        if ctx.is_first:
            saved |= dict.fromkeys(forward.recompute_inputs)
        ctx.names = list(saved)
        ctx.save_for_backward(*(forward.values[name] for name in saved))
        if not ctx.is_first:
            return torch.zeros((), device=ctx.device)
        found = tuple(forward.values[name] for name in forward.results)
        ctx.zeros = [_zeros_like(value) for value in found]
        pairs = zip(forward.results, found)
        ctx.mark_non_differentiable(*(value for name, value in pairs if name in forward.fixed))
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise OptionError(
                "create_graph=True: onward.Module has no gradients of gradients\n"
                "differentiate the module that it wraps: module.module"
            )
        if any(map(_is_batched, cotangents)):
            raise OptionError(
                "onward.Module does not run under vmap, such as is_grads_batched=True\n"
                "differentiate the module that it wraps: module.module"
            )
        forward: ForwardRun = ctx.run
        values = dict(zip(ctx.names, ctx.saved_tensors))
        if ctx.is_first:
            _start(ctx, forward, cotangents, values)
        if forward.recomputed is not None:
            found = forward.recomputed
        else:
            found = _run_segment(forward, ctx.segment, values)
        link = torch.zeros((), device=ctx.device) if ctx.has_link else None
        # an input of other results has no gradient: with zeros, an optimizer would change it
        reached = forward.reached
        gradients = (found.get(name) if name in reached else None for name in ctx.inputs)
        return None, None, link, None, *gradients


_apply: Callable[..., Any] = _Segment.apply


def _start(
    ctx: Any, forward: ForwardRun, given: Sequence[Tensor | None], values: dict[str, Tensor]
) -> None:
    """Begin a backward pass: pass the cotangents to the backward graph's inputs."""
    forward.between, forward.recomputed = {}, None
    known = {name: each for name, each in zip(forward.results, given) if each is not None}
    forward.reached = set().union(*(forward.sources[name] for name in known))
    if forward.recompute is not None and not known.keys() <= forward.cotangents.keys():
        forward.recomputed = forward.recompute(values, known)
        return
    for name, each, zeros in zip(forward.results, given, ctx.zeros):
        if name in forward.cotangents:
            forward.between[forward.cotangents[name]] = zeros() if each is None else each


def _run_segment(
    forward: ForwardRun, segment: Segment, values: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The gradients of a segment's inputs; what later segments read is kept."""
    between = forward.between
    inputs = [values[name] if name in values else between[name] for name in segment.inputs]
    found = dict(zip(segment.outputs, segment.run(inputs)))
    # nothing else is kept: autograd copies a gradient that is still held elsewhere
    segments = forward.runs.segments
    later = segments[segments.index(segment) + 1 :]
    between.update({n: found[n] for each in later for n in each.inputs if n in found})
    if not later and not torch._C._autograd._get_current_graph_task_keep_graph():
        forward.runs.is_done = True
    return {name: found[gradient] for name, gradient in segment.gradients.items()}


def _is_batched(tensor: Tensor | None) -> bool:
    """Whether a tensor stands for those of several calls."""
    kinds = torch._C._functorch
    return tensor is not None and (
        kinds.is_batchedtensor(tensor) or kinds.is_legacy_batchedtensor(tensor)
    )


def _zeros_like(tensor: Tensor) -> Callable[[], Tensor]:
    """A function that makes zeros like a tensor, without holding it."""
    shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)
