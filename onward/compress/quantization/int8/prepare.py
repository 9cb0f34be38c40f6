"""Prepare a float model for int8: one opset, folded normalization, unique names of nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.float_rules import rules_of_int8
from onward.compress.quantization.node_names import name_nodes
from onward.graph.files import Source, load
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.fuse import activation, convolution, gemm, norm
from onward.passes.pipelines import BASIC, PREPARE
from onward.passes.rewrite import rewrite

_OLDEST_OPSET = 18  # has LayerNormalization, reductions with axes as inputs, scales a channel

# Not attention: its products stay float, but its weights must be layers of their own.
_FUSIONS = activation.rule | norm.rule | convolution.rule | gemm.rule


def prepare(source: Source) -> ir.Model:
    """A copy of a model that is ready to be quantized; the source does not change.

    BatchNormalization is folded into convolutions, shapes are inferred, constants are folded.
    The opset is the oldest that the model fits, so that more engines load the result.
    """
    model = BASIC(PREPARE(load(source).clone()))
    if rewrite(model, _FUSIONS) + rewrite(model, rules_of_int8):  # these read what was fused
        drop_unused(model)
        model = BASIC(model)
    name_nodes(model)
    make_contiguous(model)
    return lower_opset(model, STOCK_OPSET, _OLDEST_OPSET)


def make_contiguous(model: ir.Model) -> None:
    """Copy weights that are views, such as a folded Transpose: onnxruntime does not take them."""
    for name, value in model.graph.initializers.items():
        held = getattr(value.const_value, "raw", None)
        if isinstance(held, np.ndarray) and not held.flags.c_contiguous:
            value.const_value = ir.tensor(np.asarray(held, order="C"), name=name)
