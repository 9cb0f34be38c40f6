"""Gelu and its gradient in 16 bits, compiled: a few operations instead of an exact erf or tanh.

    gelu(x) = x Phi(x),  gelu'(x) = Phi(x) + x phi(x)

With approximate="tanh", Phi(x) = (1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x³).
Without, the tail 1 - Phi(|x|) is a polynomial of 1 / (1 + p |x|) times exp(-x²/2) (Abramowitz and
Stegun, 7.1.26): its error, 3e-7 at most, is far below what 16 bits can hold, and both formulas
share the exponential. On a GPU the erf and tanh of full precision take longer than to read and
write the tensors.
"""

from __future__ import annotations

import math

import torch

from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.materialized import materialized

_P = 0.3275911 * math.sqrt(0.5)
_FACTORS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_LINEAR = 2 * math.sqrt(2 / math.pi)  # 2u = x (_LINEAR + _CUBIC x²)
_CUBIC = 0.044715 * _LINEAR


def has_narrow_form(x: Tensor) -> bool:
    """Whether the few operations are used: for 16 bits, compiled, on a GPU."""
    is_narrow = x.dtype in (torch.bfloat16, torch.float16)
    return is_narrow and x.is_cuda and torch.compiler.is_compiling()


def narrow_gelu(x: Tensor, approximate: str) -> Tensor:
    """x Phi(x)"""
    z = x.float()
    phi = _logistic(z) if approximate == "tanh" else normal_distribution(z)[0]
    return (z * phi).to(x.dtype)


def narrow_gelu_gradient(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    """dy (Phi(x) + x phi(x))"""
    z = x.float()
    if approximate == "tanh":
        phi = _logistic(z)
        density = phi * (1.0 - phi) * (_LINEAR + 3.0 * _CUBIC * z * z)
    else:
        phi, bell = normal_distribution(z)
        density = bell * _DENSITY
    return materialized((dy.float() * (phi + z * density)).to(x.dtype))


def _logistic(z: Tensor) -> Tensor:
    """Phi's approximation by tanh"""
    return torch.sigmoid(z * (_LINEAR + _CUBIC * z * z))


def normal_distribution(z: Tensor) -> tuple[Tensor, Tensor]:
    """Phi(z) and exp(-z²/2), in float32.

    >>> phi, bell = normal_distribution(torch.tensor([-1.0, 0.0, 1.0]))
    >>> phi, bell
    (tensor([0.1587, 0.5000, 0.8413]), tensor([0.6065, 1.0000, 0.6065]))
    """
    bell = torch.exp(-0.5 * z * z)
    k = 1.0 / (1.0 + _P * z.abs())
    total = k * _FACTORS[0]
    for factor in _FACTORS[1:]:
        total = k * (total + factor)
    tail = 0.5 * total * bell
    return torch.where(z < 0, tail, 1.0 - tail), bell
