"""What a tensor's numbers are like, as a few lines of text."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLES = 128


def summarize_tensor(title: str, tensor: Tensor, bucket_size: int = 2**29) -> str:
    """The shape, range, mean and deviation of a tensor, how many numbers are special, the first.

    >>> print(summarize_tensor("x", torch.tensor([1.0, -1.0, 0.0])))
    x shape: torch.Size([3]) dtype: torch.float32 size: torch.Size([3])
    min: -1 max: 1, mean: 0, std: 1
    nan: 0, inf: 0
    samples(top 128): tensor([ 1., -1.,  0.])
    neg: 1, pos: 1, zero: 1,
    ================
    <BLANKLINE>
    """
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    parts = [_PartSums(bucket) for bucket in torch.split(flat, bucket_size)] if flat.numel() else []
    count = flat.numel()
    mean = sum(part.total for part in parts) / count if count else math.nan
    squares = sum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
    deviation = math.sqrt(squares / (count - 1)) if count > 1 else math.nan
    lowest = min((part.lowest for part in parts), default=math.nan)
    highest = max((part.highest for part in parts), default=math.nan)
    nan, inf, negative, positive, zero = (sum(part.counts[i] for part in parts) for i in range(5))
    return (
        f"{title} shape: {tensor.shape} dtype: {tensor.dtype} size: {flat.size()}\n"
        f"min: {lowest:.7g} max: {highest:.7g}, mean: {mean:.7g}, std: {deviation:.7g}\n"
        f"nan: {nan}, inf: {inf}\n"
        f"samples(top {SAMPLES}): {flat[:SAMPLES]}\n"
        f"neg: {negative}, pos: {positive}, zero: {zero},\n"
        f"{'=' * 16}\n"
    )


class _PartSums:
    """The sums over a part of a tensor, in float64 so that those of float16 do not overflow."""

    def __init__(self, x: Tensor) -> None:
        self.count = x.numel()
        counts = [x.isnan(), x.isinf(), x < 0, x > 0, x == 0]
        self.counts = torch.stack([each.sum() for each in counts]).tolist()
        wide = x.double() if x.device.type != "mps" else x.float()
        self.total = wide.sum().item()
        self.mean = self.total / self.count
        self.squares = (wide - self.mean).square().sum().item()
        self.lowest, self.highest = wide.min().item(), wide.max().item()
