"""Keep `detach` and `no_grad` in a capture: values through which no gradient flows.

torch's functional traces drop both. Here they become calls of an operator of our own, which the
captured model has as gradients/stop_gradient.py says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import torch
from onnxscript import values
from torch import fx

from onward.gradients.stop_gradient import DOMAIN, OPERATOR
from onward.pytorch.fallback import CannotCapture

_TYPES = [f"tensor({name})" for name in ("float", "double", "float16", "bfloat16")]
_PARAMETER = onnx.defs.OpSchema.FormalParameter
_SCHEMA = onnx.defs.OpSchema(
    *(OPERATOR, DOMAIN, 1, "x, without a gradient"),
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
        if not _is_changed(node):
            node.target = STOP_GRADIENT
        elif not _is_held(node.args[0]):
            raise CannotCapture("it changes a detached tensor in place")
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


def _is_changed(node: fx.Node) -> bool:
    """Whether a value is changed in place, itself or a view of it."""
    for user in node.users:
        target = user.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if any(given is node for given in _written(target, user)):
            return True
        if target.is_view and _is_changed(user):
            return True
    return False


def _written(target: torch._ops.OpOverload, node: fx.Node) -> Iterator[Any]:
    """The arguments that an operator changes in place."""
    for place, argument in zip(node.args, target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield place


def _is_held(source: Any) -> bool:
    """Whether a value is a tensor of the module or of the call: the trace returns its changes.

    Changes of parameters are refused later, and nothing else that is held needs a mark.
    """
    return bool(source.op == "placeholder")


def stop_gradient(x: Any) -> Any:
    """The ONNX translation: x, through which no gradient flows."""
    return values.Op(values.Opset(DOMAIN, 1), OPERATOR, _SCHEMA)(x)
