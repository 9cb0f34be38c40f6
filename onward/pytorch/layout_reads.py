"""Layouts of tensors in memory: which of them a forward reads, and what a program takes for it.

A captured graph knows the elements of a tensor, and not its strides. If the forward reads strides,
its program is valid for contiguous tensors alone, whose strides follow from their sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from onward.pytorch.fallback import CannotCapture

STRIDES, OFFSET = "strides", "offset"


def has_layout(reads: Collection[str], tensors: Iterable[torch.Tensor]) -> bool:
    """Whether tensors have the layout that programs with these reads are valid for."""
    return not reads or all(
        tensor.is_contiguous() and (OFFSET not in reads or not tensor.storage_offset())
        for tensor in tensors
    )


def check_as_strided(module: fx.GraphModule) -> None:
    """Refuse `as_strided` of values whose elements are not in memory in their own order.

    Offsets, which count from the beginning of the memory, are rewritten to count from that of the
    value, in place.
    """
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.as_strided.default:
            x, sizes, strides, *rest = node.args
            value = x.meta["val"]
            if not value.is_contiguous():
                raise CannotCapture("it calls as_strided on a tensor that is not contiguous")
            given = rest[0] if rest else node.kwargs.get("storage_offset")
            offset = 0 if given is None else _number(given) - value.storage_offset()
            pairs = list(zip(map(_number, sizes), map(_number, strides)))
            last = offset + sum((size - 1) * stride for size, stride in pairs)
            if offset < 0 or last >= value.numel():
                raise CannotCapture("it calls as_strided for elements outside of the tensor")
            if not isinstance(offset, int):
                raise CannotCapture("it calls as_strided with an offset that depends on sizes")
            node.args, node.kwargs = (x, sizes, strides, offset), {}


def _number(size: Any) -> Any:
    """A size as a number, or as a symbol with what is known of it."""
    return size.meta["val"] if isinstance(size, fx.Node) else size
