"""Group parameters into segments of the backward pass, in the order of their gradients."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch.distributed

from onward.pytorch.graphs import JointGraph

_BUCKET = 25 << 20  # bytes of gradients in a segment: DDP's own size of a bucket


def choose_segments(joint: JointGraph, count: int | None) -> list[list[str]]:
    """Groups of inputs whose gradients are ready together, the first ones first.

    `count` None: one group, or, if torch.distributed is in use, groups of the size of DDP's
    buckets, so that it can reduce one while the next is computed.
    """
    names = _in_order(joint)
    if not names:
        return []
    sizes = {str(value.name): _bytes(value) for value in joint.model.graph.inputs}
    total = sum(sizes[name] for name in names)
    if count is None:
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        count = max(1, math.ceil(total / _BUCKET)) if is_distributed else 1
    groups: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for name in names:  # it belongs where its middle is
        middle = before + sizes[name] / 2
        groups[min(int(count * middle / total), count - 1) if total else 0].append(name)
        before += sizes[name]
    return [group for group in groups if group]


def _in_order(joint: JointGraph) -> list[str]:
    """The inputs by the length of the longest path to their gradient: the last layers first.

    Positions of nodes would depend on how the passes before sort the graph.
    """
    depth: dict[str, int] = {}
    for node in joint.model.graph:
        longest = max((depth.get(str(v.name), 0) for v in node.inputs if v is not None), default=0)
        depth |= {str(value.name): longest + 1 for value in node.outputs}
    return sorted(joint.gradients, key=lambda name: depth.get(joint.gradients[name], -1))


def _bytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype is None or not value.shape.is_static():
        return 0
    return int(math.prod(value.shape.numpy()) * value.dtype.itemsize)
