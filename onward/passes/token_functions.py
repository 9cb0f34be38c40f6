"""Model-local functions of domain `onward` that leave out rows, and put them back.

    y = onward::PackTokens(x, gather, restore)        y[i] = x[gather[i]]
    x = onward::UnpackTokens(y, gather, restore)      x[j] = y[restore[j]], or 0
    dy = onward::PackGradients(dx, gather, restore)   dy[i] = dx[gather[i]], or 0

`x` has one row for each token, `y` one for each token that is kept, filled up to a bucket. Of the
rows of x, `restore` is the place in y, or the number of y's rows where the row was left out. Of the
rows of y, `gather` is the place in x; rows that fill the bucket repeat some row of x, to which
`restore` does not point. The gradient of PackTokens is UnpackTokens, and that of UnpackTokens is
PackGradients, whose filled rows are 0: they add nothing to the gradient of any weight.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.function_ops import FunctionOps

DOMAIN = "onward"
PACK, UNPACK, PACK_GRADIENTS = "PackTokens", "UnpackTokens", "PackGradients"
FUNCTIONS = (PACK, UNPACK, PACK_GRADIENTS)


def register(model: ir.Model, name: str) -> None:
    """Add one of this module's functions to a model that calls it."""
    model.opset_imports.setdefault(DOMAIN, 1)
    add_function(model.functions, name, model.opset_imports[""])


def add_function(
    functions: dict[ir.OperatorIdentifier, ir.Function], name: str, opset: int
) -> None:
    """Add one of this module's functions to those of a model, in an opset."""
    if (DOMAIN, name, "") in functions:
        return
    graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name=name)
    op = FunctionOps(graph, set(), graph.opset_imports)
    x, gather, restore = (op.argument(each) for each in ("x", "gather", "restore"))
    result = _BODIES[name](op, x, gather, restore)
    result.name = "result"
    graph.outputs.append(result)
    function = ir.Function(DOMAIN, name, graph=graph, attributes=())
    functions[function.identifier()] = function


def _pack(op: FunctionOps, x: ir.Value, gather: ir.Value, restore: ir.Value) -> ir.Value:
    """y = x[gather]"""
    y: ir.Value = op.Gather(x, gather, axis=0)
    return y


def _unpack(op: FunctionOps, y: ir.Value, gather: ir.Value, restore: ir.Value) -> ir.Value:
    """x = [y; 0][restore]"""
    first = op.Gather(y, np.array([0]), axis=0)
    zeros = op.Expand(op.CastLike(np.float32(0), y), op.Shape(first))
    x: ir.Value = op.Gather(op.Concat(y, zeros, axis=0), restore, axis=0)
    return x


def _pack_gradients(op: FunctionOps, dx: ir.Value, gather: ir.Value, restore: ir.Value) -> ir.Value:
    """dy = dx[gather] where restore[gather[i]] = i, else 0"""
    places = op.Range(np.int64(0), op.Size(gather), np.int64(1))
    kept = op.Equal(op.Gather(restore, gather, axis=0), places)
    others = op.Sub(op.Shape(op.Shape(dx)), np.array([1]))  # the axes after the rows
    ones = op.Expand(np.array([1]), others)
    kept = op.Reshape(kept, op.Concat(np.array([-1]), ones, axis=0))
    dy: ir.Value = op.Where(kept, op.Gather(dx, gather, axis=0), op.CastLike(np.float32(0), dx))
    return dy


_BODIES = {PACK: _pack, UNPACK: _unpack, PACK_GRADIENTS: _pack_gradients}
