"""The whole story on one screen: what happens to a model before a provider sees it.

PREPARE makes it plain; INFERENCE makes it fast, at onnxruntime's levels; TRAINING tidies a model
that holds its own gradient, and leaves every parameter a tensor of its own. Passes change the model
in place and return it. Each keeps the graph's inputs and outputs: names, order, types, metadata.
"""

from __future__ import annotations

from enum import IntEnum

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.infer import infer_missing, infer_shapes
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.fold import fold_constants
from onward.passes.fuse import activation, attention, convolution, gemm, norm, rotary
from onward.passes.loop_bodies import release_invariants, return_copies
from onward.passes.normalize import (
    fill_default_attributes,
    free_old_initializers,
    inline_functions,
    lift_constants,
    name_values,
    open_negative_sizes,
    resolve_cast_like,
    sort_nodes,
    spell_domains,
)
from onward.passes.pass_sequence import Pipeline
from onward.passes.prune import drop_unused
from onward.passes.rewrite import rewrite
from onward.passes.sequences import write_splits
from onward.passes.simplify import (
    consecutive_nodes,
    joined_slices,
    known_sizes,
    noops,
    transposed_products,
)
from onward.passes.transposes import sink_transposes
from onward.passes.upgrade import upgrade_opset


class Level(IntEnum):
    """onnxruntime's graph optimisation levels, by its numbers."""

    DISABLE_ALL = 0
    BASIC = 1
    EXTENDED = 2
    LAYOUT = 3
    ALL = 99


SIMPLIFICATIONS = noops.rule | consecutive_nodes.rule | known_sizes.rule
OF_GRADIENTS = transposed_products.rule | joined_slices.rule


def simplify(model: ir.Model) -> ir.Model:
    """Nodes that do nothing, pairs that are one, shapes that are known."""
    rewrite(model, SIMPLIFICATIONS)
    return model


PREPARE = Pipeline(
    "prepare",
    (
        spell_domains,
        sort_nodes,
        free_old_initializers,
        open_negative_sizes,
        inline_functions,
        name_values,
        lift_constants,
        upgrade_opset,
        return_copies,
        release_invariants,
        fill_default_attributes,
        infer_from_inputs,
        resolve_cast_like,
        write_splits,
    ),
)

# What shapes are computed from, folded, so that their ranks are known; for models in training,
# whose parameters are inputs by then.
SETTLE = Pipeline(
    "settle",
    (simplify, fold_constants, drop_unused, fill_default_attributes, infer_shapes),
    rounds=4,
)

BASIC = Pipeline(
    "basic",
    (
        simplify,
        fold_constants,
        share_initializers,
        share_expressions,
        drop_unused,
        fill_default_attributes,
        infer_shapes,
    ),
    rounds=4,
)

FUSIONS = activation.rule | norm.rule | attention.rule | rotary.rule | convolution.rule | gemm.rule


def fuse(model: ir.Model) -> ir.Model:
    """Formulas that have an operator of their own; what goes into a convolution's weights."""
    rewrite(model, FUSIONS)
    return model


EXTENDED = Pipeline("extended", (fuse, drop_unused, fill_default_attributes, infer_shapes, BASIC))

LAYOUT = Pipeline("layout", (sink_transposes, infer_shapes, fuse, drop_unused, BASIC))

INFERENCE: dict[Level, Pipeline] = {
    Level.DISABLE_ALL: Pipeline("disable all", ()),
    Level.BASIC: BASIC,
    Level.EXTENDED: BASIC + EXTENDED,
    Level.LAYOUT: BASIC + EXTENDED + LAYOUT,
    Level.ALL: BASIC + EXTENDED + LAYOUT,
}


def simplify_backward(model: ir.Model) -> ir.Model:
    """The same, and what gradients are full of: transposed products, parts of one whole."""
    rewrite(model, SIMPLIFICATIONS | OF_GRADIENTS)
    return model


TRAINING = Pipeline(
    "training",
    (
        simplify_backward,
        fold_constants,
        share_expressions,
        drop_unused,
        fill_default_attributes,
        infer_missing,
    ),
    rounds=4,
)


def inference(level: int) -> Pipeline:
    """The pipeline of one of onnxruntime's levels; runs on a prepared model."""
    try:
        return INFERENCE[Level(level)]
    except ValueError:
        levels = ", ".join(f"{each.value} ({each.name.lower()})" for each in Level)
        raise OptionError(
            f"graph optimisation level {level} does not exist\nit is one of {levels}"
        ) from None
