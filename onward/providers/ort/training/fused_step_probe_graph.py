"""Build the graph of the fused-step probe: a small step with a known result."""

from __future__ import annotations

import functools

import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.optimizers.adam import AdamW
from onward.programs.program import LOSS
from onward.programs.training_options import TrainingOptions
from onward.programs.update_graphs import build_update
from onward.providers.ort.training.fused_step import fuse_step
from onward.providers.ort.training.fused_step_probe import (
    BETAS,
    BLOCKS,
    DECAY,
    EPS,
    GIVEN,
    GRADIENT,
    SIZE,
    WEIGHT,
)
from onward.providers.ort.training.lowered import MEASURE
from onward.providers.ort.training.update_lowering import lower_update


@functools.cache
def probe_graph() -> bytes:
    """loss = sum(x w), and AdamW updates w; built by the same functions as a real step."""
    op = OpBuilder(opset=21)
    x, w = op.input(GIVEN, "float32", (SIZE,)), op.input(WEIGHT, "float32", (SIZE,))
    loss = op.ReduceSum(op.Mul(x, w), keepdims=0)
    gradient = op.Mul(x, 1.0)
    measure = op.ReduceSum(gradient, keepdims=0)
    train = ir.to_proto(op.model(**{LOSS: loss, GRADIENT: gradient, MEASURE: measure}))
    optimizer = AdamW(betas=BETAS, eps=EPS, weight_decay=DECAY)
    update, _ = build_update(optimizer, "float32", {WEIGHT: (SIZE,)}, TrainingOptions())
    lowered = lower_update(update, flat=True)
    assert lowered.blocks == BLOCKS
    return fuse_step(train.SerializeToString(), [lowered], [True])
