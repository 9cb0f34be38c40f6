"""Gradient of linear layers in 8-bit floats: see passes/float8_functions.py."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, absent
from onward.graph.scopes import COMPOSITES
from onward.passes.float8_functions import (
    FLOAT8_LINEAR,
    FLOAT8_LINEAR_GRAD,
    add_float8_function,
)

gradient = GradientTable()


@gradient(FLOAT8_LINEAR, domain=COMPOSITES)
@absent
def float8_linear(op: GradientOps, node: ir.Node, dy: Any, *_: Any) -> Any:
    """dx = dy w', dw = x' dy; the "gradient" of the fourth input is the largest |dy|

    Who differentiates asks for that one, too: the scale of later dy is computed of it.
    """
    if op.functions is None or dy is None:
        raise ValueError("only a training program writes 8-bit products")
    x, w, scales, probe = node.inputs
    assert x is not None and w is not None and probe is not None
    qx, qw = node.outputs[1:3]
    add_float8_function(op.functions, FLOAT8_LINEAR_GRAD, op.opsets[""])
    call = ir.Node(
        COMPOSITES,
        FLOAT8_LINEAR_GRAD,
        [dy, qx, qw, scales],
        num_outputs=3,
        name=op.name(FLOAT8_LINEAR_GRAD),
    )
    for value, like in zip(call.outputs, (x, w, probe)):
        value.name = op.name(FLOAT8_LINEAR_GRAD)
        value.type, value.shape = like.type, like.shape
    op.graph.append(call)
    dx, dw, largest = call.outputs
    return [dx, dw, None, largest]
