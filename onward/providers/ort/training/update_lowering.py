"""Lower an update graph to stock onnxruntime, with sums of scaled vectors as matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onward.optimizers.paired_vectors import paired
from onward.passes.composites import inline_calls
from onward.providers.ort.rewrites.faster_forms import add_in_parts
from onward.providers.ort.training.lowered import LoweredUpdate


def lower_update(model: ir.Model, flat: bool) -> LoweredUpdate:
    """Lower an update graph; of flat vectors, also with a x + b y as one matrix product."""
    model = add_in_parts(inline_calls(model.clone()))
    has_bfloat16 = any(value.dtype == ir.DataType.BFLOAT16 for value in model.graph.inputs)
    bound, blocks = paired(model) if flat and not has_bfloat16 else (model, ())
    return LoweredUpdate(
        graph=ir.to_proto(model).SerializeToString(),
        bound=ir.to_proto(bound).SerializeToString(),
        blocks=blocks,
    )
