"""Join tensors in a vector: expressions for a written function.

    torch.cat([w.reshape(-1), pad(b.reshape(-1), (0, 13))]).to(torch.float32)
    torch.ops.onward.join([w, b], [6, 10, 3, 13], torch.float32)     # compiled for a CPU

A compiler for a CPU copies each tensor in a loop over the vector: where a tensor lies in memory in
another order, as gradients of convolutions do, it computes the place of every single element. An
operator copies as torch does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from onward.programs.vector_offsets import Places
from onward.providers.torch.dtypes import Tensor


def join_expression(
    places: Places, tensors: Mapping[str, str], dtype: torch.dtype, *, copies: bool
) -> str:
    """Tensors in a vector, with zeros in the gaps; `copies`: by an operator."""
    starts = [where.start for where in places.slices.values()]
    parts, flat, sizes = [], [], []
    for (name, where), end in zip(places.slices.items(), [*starts[1:], places.size]):
        gap = end - where.stop
        parts.append(tensors[name])
        row = f"{tensors[name]}.reshape(-1)"
        flat.append(f"pad({row}, (0, {gap}))" if gap else row)
        sizes += [where.stop - where.start, gap]
    if copies:
        return f"torch.ops.onward.join([{', '.join(parts)}], {sizes}, {dtype})"
    return f"torch.cat([{', '.join(flat)}]).to({dtype})"


torch.library.define(
    "onward::join",
    "(Tensor[] parts, int[] sizes, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.flexible_layout,),
)


@torch.library.impl("onward::join", "CompositeExplicitAutograd")
def _join(parts: Sequence[Tensor], sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The parts in a vector; `sizes`: the elements of each, and those of the gap behind it."""
    vector = parts[0].new_empty(sum(sizes), dtype=dtype)
    pieces = torch.split(vector, list(sizes))
    for part, piece in zip(parts, pieces[::2]):
        piece.view(part.shape).copy_(part)
    torch._foreach_zero_([gap for gap in pieces[1::2] if len(gap)] or [vector[:0]])
    return vector
