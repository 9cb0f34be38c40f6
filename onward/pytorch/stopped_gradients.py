"""Keep `detach` and `no_grad` in a capture: values through which no gradient flows.

torch's functional traces drop both. Here they become calls of an operator of our own, then, in the
captured model, Identity nodes with a mark; while gradients are built, nodes without a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import values
from torch import fx

from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from onward.passes.rewrite import nodes_of

_DOMAIN, _OPERATOR = "onward.pytorch", "StopGradient"
_MARK = "onward.stop_gradient"  # of an Identity node, in its metadata
_TYPES = [f"tensor({name})" for name in ("float", "double", "float16", "bfloat16")]
_PARAMETER = onnx.defs.OpSchema.FormalParameter
_SCHEMA = onnx.defs.OpSchema(
    *(_OPERATOR, _DOMAIN, 1, "x, without a gradient"),
    inputs=[_PARAMETER("x", "T")],
    outputs=[_PARAMETER("y", "T")],
    type_constraints=[("T", _TYPES, "")],
)


@torch.library.custom_op("onward::stop_gradient", mutates_args=())
def _stop_gradient(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_stop_gradient.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


STOP_GRADIENT = torch.ops.onward.stop_gradient.default
_NO_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


def mark_in_trace(module: fx.GraphModule) -> None:
    """Replace `detach` in a trace, and mark the results of `no_grad`; in submodules too."""
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            for node in list(each.graph.nodes):
                _mark(each.graph, node)
            each.recompile()


def _mark(graph: fx.Graph, node: fx.Node) -> None:
    if node.target == torch.ops.aten.detach.default:
        node.target = STOP_GRADIENT
    elif node.target == _NO_GRAD and node.args[0] is False:
        for result in list(node.users):
            value = result.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            with graph.inserting_after(result):
                stopped = graph.call_function(STOP_GRADIENT, (result,))
            stopped.meta = {**result.meta}
            for user in list(result.users):
                if user is not stopped:
                    user.replace_input_with(result, stopped)


def stop_gradient(x: Any) -> Any:
    """The ONNX translation: x, through which no gradient flows."""
    return values.Op(values.Opset(_DOMAIN, 1), _OPERATOR, _SCHEMA)(x)


# -- in models ---------------------------------------------------------------------------------


def write_as_identities(model: ir.Model) -> None:
    """Turn the operator into Identity nodes with a mark: a model of standard operators."""
    for node in _operators(model):
        node.domain, node.op_type, node.version = "", "Identity", None
        node.metadata_props[_MARK] = "1"
    model.opset_imports.pop(_DOMAIN, None)


def restore_operators(model: ir.Model) -> ir.Model:
    """Turn marked Identity nodes into the operator, which has no gradient."""
    for node in nodes_of(model):
        if _MARK in node.metadata_props:
            node.domain, node.op_type = _DOMAIN, _OPERATOR
            model.opset_imports[_DOMAIN] = 1
    return model


def _operators(model: ir.Model) -> Iterator[ir.Node]:
    return iter([n for n in nodes_of(model) if (n.domain, n.op_type) == (_DOMAIN, _OPERATOR)])


gradient = GradientTable()
gradient.none("detach and no_grad stop it", _OPERATOR, domain=_DOMAIN)
MODULE_GRADIENTS = GRADIENTS | gradient
