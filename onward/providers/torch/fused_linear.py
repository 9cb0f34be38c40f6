"""Replace a matrix product and the sum with its bias by one operator, as torch's linear layers are.

    y = Add(MatMul(x, w), b)  ->  y = Linear(x, w, b)

A GPU's matrix product adds the bias while it writes its result.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.scopes import graphs_of
from onward.passes.rewrite import take_over
from onward.passes.value_facts import dims, made_by, rank
from onward.providers.torch.private_domain import DOMAIN

LINEAR = "Linear"


def fuse_linear(model: ir.Model) -> None:
    """Replace products with a bias by Linear, in place."""
    for graph in graphs_of(model):
        for node in list(graph):
            if node.op_type == "Add" and not node.domain:
                _fuse(node)


def _fuse(add: ir.Node) -> None:
    found = next(filter(None, (_product(add, i) for i in (0, 1))), None)
    if found is None:
        return
    product, bias = found
    x, w = product.inputs
    node = ir.Node(DOMAIN, LINEAR, [x, w, bias], name=add.name)
    graph = add.graph
    assert graph is not None
    graph.insert_before(add, node)
    take_over(add.outputs[0], node.outputs[0])
    graph.remove([add, product], safe=False)
    graph.opset_imports.setdefault(DOMAIN, 1)


def _product(add: ir.Node, place: int) -> tuple[ir.Node, ir.Value] | None:
    """The product that is an input of a sum, and the other input if it is a bias of its columns."""
    value, bias = add.inputs[place], add.inputs[1 - place]
    product = made_by(value, "MatMul")
    if product is None or value is None or bias is None or product.graph is not add.graph:
        return None
    if len(value.uses()) != 1 or value.is_graph_output() or value.dtype not in FLOATS:
        return None
    x, w = product.inputs
    if (rank(x) or 0) < 2 or rank(w) != 2 or rank(bias) != 1 or bias.dtype != value.dtype:
        return None
    columns, numbers = (dims(w) or (None,))[-1], (dims(bias) or (None,))[0]
    is_equal = isinstance(columns, int) and columns == numbers and columns > 1
    return (product, bias) if is_equal else None
