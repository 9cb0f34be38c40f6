"""Model-local functions of domain `onward` that say when and where a value is kept in memory.

    y = onward::RunAfter(x, token)                  x, not before the token is computed
    h = onward::OffloadToHost(x)                    x, in host memory
    s = onward::AwaitOffload(h, x)                  h, once it is there: x lives until then
    p = onward::FetchFromHost(s, token)             x, on its way back to the device
    y = onward::AwaitFetch(p)                       x, on the device
    q, scale = onward::QuantizeActivation(x)        8-bit blocks of 256 numbers, a scale for each
    y = onward::DequantizeActivation(q, scale, shape)   x, rounded

The bodies are standard operators, so that any runtime can inline them: there, host and device are
one memory. An engine with kernels keeps the calls.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import COMPOSITES
from onward.passes.function_ops import FunctionOps

RUN_AFTER = "RunAfter"
OFFLOAD, AWAIT_OFFLOAD = "OffloadToHost", "AwaitOffload"
FETCH, AWAIT_FETCH = "FetchFromHost", "AwaitFetch"
QUANTIZE, DEQUANTIZE = "QuantizeActivation", "DequantizeActivation"
BLOCK = 256  # numbers that share a scale
LARGEST = 127.0  # of 8 bits with a sign


def register_memory_function(model: ir.Model, name: str) -> None:
    """Add one of this module's functions to a model that calls it."""
    model.opset_imports.setdefault(COMPOSITES, 1)
    if (COMPOSITES, name, "") not in model.functions:
        opset = model.opset_imports[""]
        graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name=name)
        for i, result in enumerate(_BODIES[name](FunctionOps(graph, set(), graph.opset_imports))):
            result.name = f"result_{i}"
            graph.outputs.append(result)
        function = ir.Function(COMPOSITES, name, graph=graph, attributes=())
        model.functions[function.identifier()] = function


def is_barrier(node: ir.Node) -> bool:
    """Whether a node orders others: engines inline it last, or passes would remove it."""
    return node.domain == COMPOSITES and node.op_type == RUN_AFTER


def is_await(node: ir.Node) -> bool:
    """Whether a node waits for a value that is on its way from host memory."""
    return node.domain == COMPOSITES and node.op_type == AWAIT_FETCH


def puts_away(node: ir.Node) -> bool:
    """Whether a node of the forward pass stores a value for the backward pass."""
    return node.domain == COMPOSITES and node.op_type in (OFFLOAD, AWAIT_OFFLOAD, QUANTIZE)


def is_on_host(node: ir.Node) -> bool:
    """Whether the result of a node is in host memory."""
    return node.domain == COMPOSITES and node.op_type in (OFFLOAD, AWAIT_OFFLOAD)


def runs_in_order(node: ir.Node) -> bool:
    """Whether a node saves memory only if its graph runs in order."""
    return node.domain == COMPOSITES and node.op_type in _BODIES


def _run_after(op: FunctionOps) -> list[ir.Value]:
    """reshape(x, shape(x) followed by no element of the token)

    Engines neither remove it, nor run it early, nor copy x.
    """
    x, token = op.argument("x"), op.argument("token")
    none = op.Slice(op.Reshape(token, np.array([-1])), np.array([0]), np.array([0]))
    shape = op.Concat(op.Shape(x), op.Cast(none, to=int(ir.DataType.INT64)), axis=0)
    return [op.Reshape(x, shape)]


def _offload(op: FunctionOps) -> list[ir.Value]:
    return [op.Identity(op.argument("x"))]


def _await_offload(op: FunctionOps) -> list[ir.Value]:
    held, _ = op.argument("held"), op.argument("x")
    return [op.Identity(held)]


def _fetch(op: FunctionOps) -> list[ir.Value]:
    x, _ = op.argument("x"), op.argument("token")
    return [op.Identity(x)]


def _quantize(op: FunctionOps) -> list[ir.Value]:
    """q = round(x / scale), scale = max |x| / 127 of each block; the last one is filled with 0"""
    flat = op.Reshape(op.argument("x"), np.array([-1]))
    size = op.Shape(flat)
    missing = op.Mod(op.Neg(size), np.array([BLOCK]))
    padded = op.Pad(flat, op.Concat(np.array([0]), missing, axis=0))
    blocks = op.Reshape(padded, np.array([-1, BLOCK]))
    largest = op.ReduceMax(op.Abs(blocks), np.array([1]), keepdims=1)
    scale = op.Div(largest, op.CastLike(np.float32(LARGEST), largest))
    zero, one = (op.CastLike(np.float32(number), scale) for number in (0, 1))
    divisor = op.Where(op.Equal(scale, zero), one, scale)
    q = op.Cast(op.Round(op.Div(blocks, divisor)), to=int(ir.DataType.INT8))
    return [q, scale]


def _dequantize(op: FunctionOps) -> list[ir.Value]:
    """y = q scale, in the shape of x"""
    q, scale, shape = op.argument("q"), op.argument("scale"), op.argument("shape")
    flat = op.Reshape(op.Mul(op.CastLike(q, scale), scale), np.array([-1]))
    size = op.ReduceProd(shape, keepdims=1)
    return [op.Reshape(op.Slice(flat, np.array([0]), size), shape, allowzero=1)]


_BODIES: dict[str, Callable[[FunctionOps], list[ir.Value]]] = {
    RUN_AFTER: _run_after,
    OFFLOAD: _offload,
    AWAIT_OFFLOAD: _await_offload,
    FETCH: _fetch,
    AWAIT_FETCH: _offload,
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
}
