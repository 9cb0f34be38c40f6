"""The pipelines: which passes run on a model before a provider compiles it, and in which order.

PREPARE normalizes a model; INFERENCE optimizes it, at onnxruntime's levels; TRAINING optimizes a
model that contains its gradient, and never merges two parameters. Passes change the model in place
and return it. Each keeps the graph's inputs and outputs: names, order, types, metadata.
"""

from __future__ import annotations

from enum import IntEnum

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.shapes.declared import infer_from_inputs
from onward.graph.shapes.infer import infer_missing, infer_shapes
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.drop_unused import drop_unused
from onward.passes.exporters.tensorflow_operators import replace_tensorflow_operators
from onward.passes.fold import fold_constants
from onward.passes.fuse import activation, attention, convolution, gemm, norm, rotary
from onward.passes.loop_bodies import hoist_loop_invariants, separate_subgraph_outputs
from onward.passes.normalize import (
    clear_negative_sizes,
    drop_initializer_inputs,
    fill_default_attributes,
    inline_functions,
    lift_constants,
    name_values,
    resolve_cast_like,
    sort_nodes,
    unify_default_domain,
)
from onward.passes.pass_sequence import IfChanged, PassSequence
from onward.passes.rewrite import rewrite
from onward.passes.sequences import replace_sequences_by_splits
from onward.passes.simplify import (
    consecutive_nodes,
    einsum_pairs,
    einsum_products,
    joined_slices,
    known_sizes,
    noops,
    powers,
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


SIMPLIFICATIONS = noops.rule | consecutive_nodes.rule | known_sizes.rule | einsum_pairs.rule
GRADIENT_SIMPLIFICATIONS = (
    transposed_products.rule | joined_slices.rule | powers.rule | einsum_products.rule
)


def simplify(model: ir.Model) -> ir.Model:
    """Remove nodes that do nothing, merge consecutive nodes, replace known shapes by constants."""
    rewrite(model, SIMPLIFICATIONS)
    return model


PREPARE = PassSequence(
    "prepare",
    (
        unify_default_domain,
        sort_nodes,
        drop_initializer_inputs,
        clear_negative_sizes,
        inline_functions,
        name_values,
        lift_constants,
        upgrade_opset,
        replace_tensorflow_operators,
        separate_subgraph_outputs,
        hoist_loop_invariants,
        fill_default_attributes,
        infer_from_inputs,
        resolve_cast_like,
        replace_sequences_by_splits,
    ),
)

INFER = IfChanged(infer_shapes)  # the slowest pass: it hands the whole model to ONNX

# Folds what shapes are computed from, so that every rank is known. Parameters must be graph inputs.
FOLD_SHAPES = PassSequence(
    "fold shapes",
    (simplify, fold_constants, drop_unused, fill_default_attributes, INFER),
    rounds=4,
)

BASIC = PassSequence(
    "basic",
    (
        simplify,
        fold_constants,
        share_initializers,
        share_expressions,
        drop_unused,
        fill_default_attributes,
        INFER,
    ),
    rounds=4,
)

FUSIONS = (
    activation.rule
    | norm.rule
    | attention.rule
    | rotary.rule
    | convolution.rule
    | gemm.rule
    | einsum_products.rule
)


def fuse(model: ir.Model) -> ir.Model:
    """Replace formulas by the operator that computes them; fold factors into convolutions."""
    rewrite(model, FUSIONS)
    return model


EXTENDED = PassSequence("extended", (fuse, drop_unused, fill_default_attributes, INFER, BASIC))

LAYOUT = PassSequence("layout", (sink_transposes, INFER, fuse, drop_unused, BASIC))

INFERENCE: dict[Level, PassSequence] = {
    Level.DISABLE_ALL: PassSequence("disable all", ()),
    Level.BASIC: BASIC,
    Level.EXTENDED: BASIC + EXTENDED,
    Level.LAYOUT: BASIC + EXTENDED + LAYOUT,
    Level.ALL: BASIC + EXTENDED + LAYOUT,
}


def simplify_gradients(model: ir.Model) -> ir.Model:
    """`simplify`, and the forms that gradients often have: transposed products, joined slices."""
    rewrite(model, SIMPLIFICATIONS | GRADIENT_SIMPLIFICATIONS)
    return model


TRAINING = PassSequence(
    "training",
    (
        simplify_gradients,
        fold_constants,
        share_expressions,
        drop_unused,
        fill_default_attributes,
        infer_missing,
    ),
    rounds=4,
)


def inference(level: int) -> PassSequence:
    """The pipeline of one of onnxruntime's levels, for a prepared model."""
    try:
        return INFERENCE[Level(level)]
    except ValueError:
        levels = ", ".join(f"{each.value} ({each.name.lower()})" for each in Level)
        raise OptionError(
            f"graph optimisation level {level} does not exist\nit must be one of {levels}"
        ) from None
