"""Replace operators of TensorFlow that tf2onnx leaves in a model, though ONNX has no such operator.

Erfc(x) -> 1 - Erf(x): Keras' exact Gelu is written with it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import graphs_of
from onward.passes.rewrite import Names, take_over


def replace_tensorflow_operators(model: ir.Model) -> ir.Model:
    """Replace them, in place."""
    names = Names(model)
    for graph in graphs_of(model):
        for node in list(graph):
            if (node.domain, node.op_type) == ("", "Erfc") and len(node.inputs) == 1:
                _replace_erfc(model, node, names)
    return model


def _replace_erfc(model: ir.Model, node: ir.Node, names: Names) -> None:
    x, graph = node.inputs[0], node.graph
    assert graph is not None
    one = ir.tensor(np.float32(1), name=names.fresh("one"))
    constant = ir.val(one.name, const_value=one)
    model.graph.register_initializer(constant)
    nodes = [ir.Node("", "CastLike", [constant, x]), ir.Node("", "Erf", [x])]
    nodes.append(ir.Node("", "Sub", [nodes[0].outputs[0], nodes[1].outputs[0]], name=node.name))
    for each in nodes[:2]:
        each.name = names.fresh(f"{node.name}_{each.op_type}")
        each.outputs[0].name = names.fresh(each.name)
    graph.insert_before(node, nodes)
    take_over(node.outputs[0], nodes[-1].outputs[0])
    graph.remove(node, safe=True)
