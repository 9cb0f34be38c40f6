"""Every torch kernel, and every shape computation that stays on the host."""

from __future__ import annotations

from onward.providers.torch.kernels import (
    activation,
    attention,
    attention_grad,
    cast,
    composite_activation,
    composite_conv,
    composite_loss,
    composite_norm,
    composite_pool,
    contrib,
    contrib_attention,
    contrib_compressed,
    contrib_quantized,
    control,
    conv,
    float8,
    host_copies,
    image,
    index,
    linear,
    linear_cross_entropy,
    loss,
    math,
    memory,
    norm,
    norm_gradient,
    pool,
    quantized,
    random,
    recurrent,
    reduce,
    sequence,
    shape,
    signal,
    tokens,
)
from onward.providers.torch.kernels import shape_arithmetic as host_family

KERNELS = (
    math.kernel
    | activation.kernel
    | cast.kernel
    | linear.kernel
    | float8.kernel
    | quantized.kernel
    | random.kernel
    | tokens.kernel
    | reduce.kernel
    | attention.kernel
    | attention_grad.kernel
    | linear_cross_entropy.kernel
    | conv.kernel
    | pool.kernel
    | norm.kernel
    | norm_gradient.kernel
    | loss.kernel
    | image.kernel
    | signal.kernel
    | recurrent.kernel
    | control.kernel
    | index.kernel
    | sequence.kernel
    | shape.kernel
    | contrib.kernel
    | contrib_attention.kernel
    | contrib_quantized.kernel
    | contrib_compressed.kernel
    | composite_activation.kernel
    | composite_conv.kernel
    | composite_loss.kernel
    | composite_norm.kernel
    | composite_pool.kernel
    | memory.kernel
    | host_copies.kernel
)
HOST = host_family.host
