"""Gradients of activation functions, each in one kernel."""

from __future__ import annotations

import functools

import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.providers.torch.composite_calls import accepts_if
from onward.providers.torch.dtypes import Ints, Tensor, Unused
from onward.providers.torch.kernels.materialized import materialized
from onward.providers.torch.kernels.narrow_gelu import has_narrow_form, narrow_gelu_gradient

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)
aten = torch.ops.aten


@composite("GeluGrad")
def gelu_grad(x: Tensor, y: Unused, dy: Tensor, *, approximate: str, wrt: Ints) -> tuple[Tensor]:
    """dx = dy (Phi(x) + x phi(x)), or of Phi's approximation by tanh"""
    if has_narrow_form(x):
        return (narrow_gelu_gradient(dy, x, approximate),)
    dx = aten.gelu_backward(dy, x, approximate=approximate)
    return (materialized(dx) if x.is_cuda else dx,)


@composite("SwishGrad")
@accepts_if(lambda call: call.attributes.get_float("alpha", 1.0) == 1)
def swish_grad(x: Tensor, y: Unused, dy: Tensor, *, alpha: float, wrt: Ints) -> tuple[Tensor]:
    """dx = dy (s + y (1 - s)), s = sigmoid(x)"""
    return (aten.silu_backward(dy, x),)


@composite("MishGrad")
def mish_grad(x: Tensor, y: Unused, dy: Tensor, *, wrt: Ints) -> tuple[Tensor]:
    """dx = dy (t + x (1 - t²) sigmoid(x)), t = tanh(softplus(x))"""
    return (aten.mish_backward(dy, x),)


@composite("HardSwishGrad")
def hard_swish_grad(x: Tensor, y: Unused, dy: Tensor, *, wrt: Ints) -> tuple[Tensor]:
    """dx = dy (x / 3 + 1/2) where |x| < 3, else dy [x > 0]"""
    return (aten.hardswish_backward(dy, x),)


@composite("SoftmaxGrad")
def softmax_grad(x: Unused, y: Tensor, dy: Tensor, *, axis: int, wrt: Ints) -> tuple[Tensor]:
    """dx = y (dy - Σ y dy)"""
    return (aten._softmax_backward_data(dy, y, axis, y.dtype),)


@composite("LogSoftmaxGrad")
def log_softmax_grad(x: Unused, y: Tensor, dy: Tensor, *, axis: int, wrt: Ints) -> tuple[Tensor]:
    """dx = dy - exp(y) Σ dy"""
    return (aten._log_softmax_backward_data(dy, y, axis, y.dtype),)
