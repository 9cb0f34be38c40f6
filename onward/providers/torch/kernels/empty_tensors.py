"""Results of empty tensors, for kernels whose fused call in torch refuses a size of 0.

Autograd can follow them back: a gradient graph of an empty batch is one of empty gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from onward.providers.torch.dtypes import Tensor


def empty_from(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of a shape without elements."""
    return x.reshape(-1)[:0].reshape(tuple(shape))


def zeros_from(shape: Sequence[int], *sources: Tensor) -> Tensor:
    """Zeros of any shape, whatever the sources hold."""
    y = sources[0].new_zeros(tuple(shape))
    for x in sources:
        y = y + x.reshape(-1)[:0].sum()
    return y
