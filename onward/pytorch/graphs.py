"""Build the forward and the backward graph of a captured module.

forward    tensors of the module and of the call -> results, new buffers, saved values
backward   cotangents of results, saved values -> gradients; in one or several segments
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.gradients.model import extend
from onward.gradients.split import split
from onward.gradients.stop_gradient import mark_identities, restore_operators
from onward.gradients.table import GRADIENTS
from onward.passes.fed_uniforms import feed_uniforms
from onward.passes.pipelines import PREPARE
from onward.passes.random_draws import Draws
from onward.passes.sequences import replace_sequences_by_slices
from onward.programs.build import prepare_training_graph
from onward.programs.program import DRAW
from onward.programs.recompute import recompute_cheap_values
from onward.pytorch.sizes import Numbers, byte_counter, fix_sizes, known_shapes, restore_shapes

NOISE = "onward.noise"  # uniform random numbers, for engines that are fed with them
COTANGENT = "{}.cotangent"


@dataclass(frozen=True)
class JointGraph:
    """A captured model with its gradients, before an engine lowers it."""

    model: ir.Model
    draws: Draws | None
    outputs: tuple[str, ...]  # of the forward
    gradients: dict[str, str]  # input -> the output that is its gradient
    cotangents: dict[str, str]  # output -> the input that is its cotangent


@dataclass(frozen=True)
class GraphPair:
    """The forward graph and the backward graph's segments, as an engine runs them."""

    forward: ir.Model
    backward: tuple[ir.Model, ...]
    noise_size: ir.Model | None  # computes how many random numbers a call needs


def build_joint(
    model: ir.Model,
    differentiated: Collection[str],
    wrt: Sequence[str],
    fixed: Numbers | None = None,
) -> JointGraph:
    """Add to a captured model the gradients of some outputs with respect to some inputs.

    Inputs that no gradient reaches have none. With `fixed`, symbolic sizes are these numbers. The
    model is not changed.
    """
    copy = model.clone()
    copy = copy if fixed is None else fix_sizes(copy, fixed)
    shapes = known_shapes(copy)
    copy = restore_operators(replace_sequences_by_slices(PREPARE(copy)))
    restore_shapes(copy, shapes)
    outputs = tuple(str(value.name) for value in copy.graph.outputs)
    draws = prepare_training_graph(copy, ())
    if not wrt or not differentiated:
        mark_identities(copy)
        return JointGraph(copy, draws, outputs, {}, {})
    cotangents = {name: COTANGENT.format(name) for name in differentiated}
    gradients = extend(
        *(copy, cotangents, wrt, GRADIENTS),
        allow_unused=True,
        omit_zeros=True,
        composites=True,
    )
    return JointGraph(copy, draws, outputs, gradients, cotangents if gradients else {})


def split_joint(
    joint: JointGraph,
    lower: Callable[[ir.Model], ir.Model],
    segments: Sequence[Sequence[str]],
    *,
    feeds_noise: bool,
    sizes: Numbers,
    recomputed: Collection[str],
) -> GraphPair:
    """Lower a joint graph for an engine, and split it; `segments` are groups of inputs.

    The backward computes results of the `recomputed` operators again, so that fewer bytes are
    saved; `sizes` are numbers to count them with.
    """
    model = joint.model.clone()
    size = feed_uniforms(model, joint.draws, NOISE) if feeds_noise else None
    model = lower(model)
    if segments:
        recompute_cheap_values(model, joint.outputs, byte_counter(sizes), recomputed)
    groups = [list(joint.outputs)]
    groups += [[joint.gradients[name] for name in segment] for segment in segments]
    forward, *backward = split(model, groups)
    return GraphPair(forward.model, tuple(piece.model for piece in backward), size)


__all__ = ["DRAW", "NOISE", "GraphPair", "JointGraph", "build_joint", "split_joint"]
