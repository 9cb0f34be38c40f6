"""Replace operators of TensorFlow that tf2onnx leaves in a model, though ONNX has no such operator.

Keras' exact Gelu has one: Erfc.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules, rewrite

_rule = Rules()


@_rule("Erfc")
def complementary_error_function(op: Ops, node: ir.Node) -> Replacement:
    """erfc(x) = 1 - erf(x)."""
    x = node.inputs[0]
    return op.Sub(op.CastLike(np.float32(1), x), op.Erf(x))


def replace_tensorflow_operators(model: ir.Model) -> ir.Model:
    """Replace them, in place."""
    rewrite(model, _rule)
    return model
