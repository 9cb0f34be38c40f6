"""Activation functions, Dropout, and the private operator ReluGradient (fused_relu_gradient.py)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Float, Int, Tensor
from onward.providers.torch.kernels.emulated_dtypes import SIGNED, by_value
from onward.providers.torch.kernels.narrow_gelu import has_narrow_form, narrow_gelu
from onward.providers.torch.kernels.random import reference_uniform
from onward.providers.torch.private_domain import DOMAIN

kernel = OpTable()


@kernel("Relu")
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return torch.relu(x)


@kernel("ReluGradient", domain=DOMAIN)
def relu_gradient(dy: Tensor, y: Tensor) -> Tensor:
    """dy where y > 0, else 0"""
    dx: Tensor = torch.ops.aten.threshold_backward(dy, y, 0)
    return dx


@kernel("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    """x if x > 0 else alpha * x"""
    return F.leaky_relu(x, alpha)


@kernel("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """x if x > 0 else slope * x"""
    if x.dtype in SIGNED:  # nothing unsigned is below 0
        return x
    return torch.where(x > 0, x, x * slope)


@kernel("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float) -> Tensor:
    """x if x > alpha else 0"""
    return F.threshold(x, alpha, 0.0)


@kernel("Elu")
def elu(x: Tensor, *, alpha: float) -> Tensor:
    """x if x > 0 else alpha * (exp(x) - 1)"""
    return F.elu(x, alpha)


@kernel("Celu")
def celu(x: Tensor, *, alpha: float) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))"""
    return F.celu(x, alpha)


@kernel("Selu")
def selu(x: Tensor, *, alpha: float, gamma: float) -> Tensor:
    """gamma * (x if x > 0 else alpha * (exp(x) - 1))"""
    return torch.ops.aten.elu(x, alpha, gamma)  # type: ignore[no-any-return]


@kernel("Gelu")
def gelu(x: Tensor, *, approximate: str) -> Tensor:
    """x * Phi(x), or Phi's approximation by tanh"""
    if has_narrow_form(x):
        return narrow_gelu(x, approximate)
    return F.gelu(x, approximate=approximate)


@kernel("Mish")
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))"""
    return F.mish(x)


@kernel("Swish")
def swish(x: Tensor, *, alpha: float) -> Tensor:
    """x * sigmoid(alpha * x)"""
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@kernel("SwiGLU")
def swiglu(a: Tensor, b: Tensor, *, alpha: float) -> Tensor:
    """swish(a) * b"""
    return swish(a, alpha=alpha) * b


@kernel("Sigmoid")
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    return torch.sigmoid(x)


@kernel("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """max(0, min(1, alpha * x + beta))"""
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return (alpha * x + beta).clamp(0, 1)


@kernel("HardSwish")
def hard_swish(x: Tensor) -> Tensor:
    """x * max(0, min(1, x / 6 + 1 / 2))"""
    return F.hardswish(x)


@kernel("Tanh")
def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


@kernel("Softplus")
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))"""
    return F.softplus(x, threshold=40)  # from there on it is x, in float64 too


@kernel("Softsign")
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)"""
    return F.softsign(x)


@kernel("Shrink")
@by_value
def shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    """x + bias where x < -lambd, x - bias where x > lambd, else 0"""
    y = torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0))
    return y.to(x.dtype)


@kernel("Softmax")
def softmax(x: Tensor, *, axis: int) -> Tensor:
    """exp(x) / sum(exp(x))"""
    return torch.softmax(x, axis)


@kernel("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """x - log(sum(exp(x)))"""
    return torch.log_softmax(x, axis)


@kernel("Hardmax")
def hardmax(x: Tensor, *, axis: int) -> Tensor:
    """1 at the first largest element, 0 elsewhere"""
    if not x.numel():
        return x
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


@kernel("Dropout")
def dropout(
    x: Tensor,
    ratio: Float | None = None,
    training_mode: Int | None = None,
    *,
    seed: int | None = None,
    outputs: int,
) -> tuple[Tensor, Tensor | None]:
    """x * mask / (1 - ratio) while training, else x."""
    ratio = 0.5 if ratio is None else ratio
    if not training_mode or ratio == 0:
        mask = torch.ones_like(x, dtype=torch.bool) if outputs > 1 else None
        return x, mask
    if seed is None:
        return torch.native_dropout(x, ratio, True)
    mask = reference_uniform(x.shape, seed, x.device) >= ratio
    return torch.where(mask, x / (1 - ratio) if ratio < 1 else x, 0), mask
