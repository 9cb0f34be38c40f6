"""Values through which no gradient flows: what `detach` and `no_grad` are in PyTorch.

In a model they are Identity nodes with a mark, which any engine runs; while gradients are built,
nodes of an operator of our own, which has none.

    mark_identities(model)      StopGradient(x) -> Identity(x), marked
    restore_operators(model)    the other way
"""

from __future__ import annotations

import onnx_ir as ir

from onward.gradients.rule import GradientTable
from onward.passes.rewrite import nodes_of

DOMAIN, OPERATOR = "onward.gradients", "StopGradient"
_MARK = "onward.stop_gradient"  # of an Identity node, in its metadata

STOPPED = GradientTable()
STOPPED.none("detach and no_grad stop it", OPERATOR, domain=DOMAIN)


def mark_identities(model: ir.Model) -> None:
    """Turn the operator into Identity nodes with a mark: a model of standard operators."""
    for node in nodes_of(model):
        if (node.domain, node.op_type) == (DOMAIN, OPERATOR):
            node.domain, node.op_type, node.version = "", "Identity", None
            node.metadata_props[_MARK] = "1"
    model.opset_imports.pop(DOMAIN, None)


def restore_operators(model: ir.Model) -> ir.Model:
    """Turn marked Identity nodes into the operator, which has no gradient."""
    for node in nodes_of(model):
        if _MARK in node.metadata_props:
            node.domain, node.op_type = DOMAIN, OPERATOR
            model.opset_imports[DOMAIN] = 1
    return model
