"""Results of empty tensors, for kernels whose fused call in torch refuses a size of 0.

They stay on autograd's path: the gradients of an empty batch are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from onward.providers.torch.dtypes import Tensor


def empty_from(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of a shape without elements."""
    return x.reshape(-1)[:0].reshape(tuple(shape))


def zeros_from(shape: Sequence[int], *sources: Tensor) -> Tensor:
    """Zeros of any shape, on the autograd path of the sources."""
    y = sources[0].new_zeros(tuple(shape))
    for x in sources:
        y = y + x.reshape(-1)[:0].sum()
    return y
