"""GRADIENTS: the table of all gradient rules. Users add their own rules with `GRADIENTS | mine`."""

from __future__ import annotations

from onward.gradients.rules import (
    activation,
    attention,
    composite_attention,
    constant,
    contrib_attention,
    contrib_fused,
    contrib_gelu_norm,
    contrib_group_attention,
    contrib_quantized,
    control,
    conv,
    deform,
    dropout,
    einsum,
    elementary,
    flex_attention,
    float8,
    image,
    index,
    linear,
    linear_attention,
    loss,
    math,
    ml,
    norm,
    pool,
    quantized,
    recurrent,
    reduce,
    regions,
    resize,
    rotary,
    sampling,
    scale,
    scatter,
    sequence,
    shape,
    shared_batch_norm,
    signal,
    slice_pad,
    tokens,
)

GRADIENTS = (
    math.gradient
    | elementary.gradient
    | activation.gradient
    | reduce.gradient
    | shape.gradient
    | slice_pad.gradient
    | index.gradient
    | scatter.gradient
    | constant.gradient
    | control.gradient
    | sequence.gradient
    | quantized.gradient
    | dropout.gradient
    | tokens.gradient
    | linear.gradient
    | float8.gradient
    | einsum.gradient
    | conv.gradient
    | deform.gradient
    | pool.gradient
    | norm.gradient
    | shared_batch_norm.gradient
    | scale.gradient
    | loss.gradient
    | contrib_gelu_norm.gradient
    | contrib_fused.gradient
    | resize.gradient
    | sampling.gradient
    | regions.gradient
    | image.gradient
    | signal.gradient
    | ml.gradient
    | attention.gradient
    | composite_attention.gradient
    | contrib_attention.gradient
    | contrib_group_attention.gradient
    | contrib_quantized.gradient
    | flex_attention.gradient
    | linear_attention.gradient
    | recurrent.gradient
    | rotary.gradient
)
