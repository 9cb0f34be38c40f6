"""The optimizers that ONNX has as operators (domain ai.onnx.preview.training).

Each takes the learning rate, the update count, then its tensors kind by kind: all parameters, all
gradients, and so on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Tensor

kernel = OpTable()
preview = functools.partial(kernel, domain="ai.onnx.preview.training")


def _each(
    update: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor, ...], kinds: int
) -> tuple[Tensor, ...]:
    """Update every parameter, with its share of each kind; results kind by kind again."""
    n = len(tensors) // kinds
    shares = zip(*(tensors[i * n : (i + 1) * n] for i in range(kinds)))
    results = zip(*(update(*share) for share in shares))
    return tuple(tensor for kind in results for tensor in kind)


@preview("Adam")
def adam(
    r: Tensor,
    t: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    epsilon: float,
    norm_coefficient: float,
    norm_coefficient_post: float,
) -> tuple[Tensor, ...]:
    """v' = alpha v + (1 - alpha) g;  h' = beta h + (1 - beta) g²;  x' = x - r v' / sqrt(h')

    g has norm_coefficient * x added, r is corrected for the moments' bias unless t is 0.
    """
    correction = torch.sqrt(1 - beta**t) / (1 - alpha**t)
    rate = torch.where(t > 0, r * correction, r)

    def update(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = g + norm_coefficient * x
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        x = x - rate.to(x.dtype) * v / (torch.sqrt(h) + epsilon)
        return (1 - norm_coefficient_post) * x, v, h

    return _each(update, tensors, 4)


@preview("Adagrad")
def adagrad(
    r: Tensor,
    t: Tensor,
    *tensors: Tensor,
    decay_factor: float,
    epsilon: float,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    """h' = h + g²;  x' = x - r / (1 + t * decay_factor) * g / sqrt(h')"""
    rate = r / (1 + t * decay_factor)

    def update(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = g + norm_coefficient * x
        h = h + g * g
        return x - rate.to(x.dtype) * g / (torch.sqrt(h) + epsilon), h

    return _each(update, tensors, 3)


@preview("Momentum")
def momentum(
    r: Tensor,
    t: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    """v' = alpha v + beta g;  x' = x - r v', or x - r (g + alpha v') after Nesterov

    beta is 1 at the first step, where t is 0.
    """
    share = torch.where(t > 0, beta, 1.0)

    def update(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        g = g + norm_coefficient * x
        v = alpha * v + share.to(x.dtype) * g
        step = g + alpha * v if mode == "nesterov" else v
        return x - r.to(x.dtype) * step, v

    return _each(update, tensors, 3)
