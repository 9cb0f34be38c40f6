"""Norms of lists of gradients, and whether they are finite: few kernels, one read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def has_overflow(gradients: Iterable[Tensor | None]) -> bool:
    """Whether an element of a gradient is infinite or not a number.

    >>> has_overflow([torch.ones(2), None, torch.tensor([1.0, float("nan")])])
    True
    """
    given = [gradient.detach() for gradient in gradients if gradient is not None]
    return bool(given) and not bool(total_norm(given, math.inf).isfinite())


def total_norm(gradients: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of gradients as one vector, in float32 or wider, on the first one's device.

    >>> total_norm([torch.full((2,), 3.0), torch.full((2,), 4.0)])
    tensor(7.0711)
    """
    if not gradients:
        return torch.zeros(())
    device = gradients[0].device
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if gradient.numel():
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    norms: list[Tensor] = []
    for (_, dtype), alike in by_kind.items():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        # a norm of float16 numbers may be more than float16 holds
        norms += [n.to(device) for n in torch._foreach_norm(alike, norm_type, dtype=wide)]
    if not norms:
        return torch.zeros((), device=device)
    widest = torch.float64 if any(n.dtype == torch.float64 for n in norms) else torch.float32
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(widest) for n in norms]), norm_type)
    return total


def clip_by_norm(gradients: Sequence[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients in place so that their norm, which is given, is at most `max_norm`."""
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0:
        torch._foreach_mul_(list(gradients), factor)
