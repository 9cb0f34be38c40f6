"""Lower an update graph to stock onnxruntime, with sums of scaled vectors as matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onward.optimizers.paired_vectors import paired
from onward.passes.composites import inline_calls
from onward.providers.ort.training.lowered import LoweredUpdate


def lower_update(model: ir.Model, flat: bool) -> LoweredUpdate:
    """Lower an update graph; if it updates flat vectors, also over pairs of adjacent ones."""
    model = inline_calls(model.clone())
    has_narrow = any(value.dtype == ir.DataType.BFLOAT16 for value in model.graph.inputs)
    bound, blocks = paired(model) if flat and not has_narrow else (model, ())
    return LoweredUpdate(
        graph=ir.to_proto(model).SerializeToString(),
        bound=ir.to_proto(bound).SerializeToString(),
        blocks=blocks,
    )
