"""Zeros for the samples of a batch that see no key, written in place.

Few batches have such samples. To multiply by 0 or 1 would read and write everything; here a sample
that is not hidden costs one look at its flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from onward.lazy import LazyModule
from onward.providers.torch.dtypes import Tensor

if TYPE_CHECKING:
    from onward.providers.torch.kernels import zero_samples
else:  # Triton comes with torch for GPUs
    zero_samples = LazyModule("onward.providers.torch.kernels.zero_samples")


def without_hidden(x: Tensor, seen: Tensor) -> Tensor:
    """x (batch, heads, length, size), or 0 where `seen` (batch, 1, length or 1, 1) is false.

    >>> without_hidden(torch.ones(2, 1, 1, 2), torch.tensor([True, False]).reshape(2, 1, 1, 1))
    tensor([[[[1., 1.]]],
    <BLANKLINE>
    <BLANKLINE>
            [[[0., 0.]]]])
    """
    by_sample = tuple(seen.shape) == (x.shape[0], 1, 1, 1)
    if not (by_sample and x.is_cuda and torch.compiler.is_compiling()):
        return x * seen.to(x.dtype)
    torch.ops.onward.zero_hidden_(x, seen.reshape(-1))  # the compiler copies x if others read it
    return x


@torch.library.custom_op("onward::zero_hidden_", mutates_args=("x",))
def _zero_hidden_(x: Tensor, seen: Tensor) -> None:
    if x.is_cuda and (x.is_contiguous() or x.transpose(1, 2).is_contiguous()):
        zero_samples.zero_samples_(x, seen)
    else:
        x.mul_(seen.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype))


@_zero_hidden_.register_fake
def _(x: Tensor, seen: Tensor) -> None:
    return None
