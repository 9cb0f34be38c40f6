"""Find the small products at the end of a model: mixed precision leaves them in float32.

Nothing averages the rounding of scores out, and a product of few multiply-adds costs little in
float32. A language model's head is not small.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onward.graph.costs.flops import Tensor
from onward.graph.costs.node_costs import declared, node_cost
from onward.graph.operators import PRODUCTS
from onward.passes.attention_calls import NAME as ATTENTION_CALL

_LINEAR = ("Gemm", "MatMul")
_ATTENTION = ("Attention", ATTENTION_CALL)
# Float32 may take sixteen times as long on a GPU: shares of all products' work
_SHARE = 1 / 500
_SHARE_IF_TINY, _TINY = 1 / 50, 1 << 14  # a tiny weight's product takes the time of a launch


def small_output_products(graph: ir.Graph) -> set[ir.Node]:
    """The linear layers that no other product follows, and whose share of the work is small."""
    last, work = _last_products(graph), _work(graph)
    total = sum(work.values())
    return {node for node in last if node.op_type in _LINEAR and _is_small(node, work, total)}


def _last_products(graph: ir.Graph) -> list[ir.Node]:
    """The products whose results no other product reads, directly or not."""
    found = []
    read: set[ir.Value | None] = set()  # what a product reads, directly or not
    for node in reversed(graph):
        follows = any(value in read for value in node.outputs)
        is_product = node.op_type in PRODUCTS or node.op_type in _ATTENTION
        if is_product and not follows:
            found.append(node)
        if is_product or follows:
            read.update(node.inputs)
    return found


def _is_small(node: ir.Node, work: dict[ir.Node, float], total: float) -> bool:
    weight = node.inputs[1]
    size = None if weight is None else _sized(weight)
    if not work[node] or size is None or size.shape is None:
        return False
    return work[node] <= total * (_SHARE_IF_TINY if size.size <= _TINY else _SHARE)


def _work(graph: Iterable[ir.Node]) -> dict[ir.Node, float]:
    """The operations of each product, dynamic sizes taken as 1."""
    return {node: node_cost(node, _sized).flops for node in graph if node.op_type in PRODUCTS}


def _sized(value: ir.Value) -> Tensor:
    if value.const_value is not None or value.shape is None:
        return declared(value)
    return Tensor(value.dtype, tuple(dim if isinstance(dim, int) else 1 for dim in value.shape))
