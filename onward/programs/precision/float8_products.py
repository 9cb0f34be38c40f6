"""Products of linear layers in 8-bit floats, with scales of the steps before (delayed scaling).

    y = MatMul(x, w)  ->  y, qx, qw, largest = onward::Float8Linear(x, w, scales)

The scale of a tensor is the largest absolute value that it had in the last steps, divided by the
largest number of its 8-bit type. These values are state of the program: one tensor `HISTORY` (call,
x | w | dy, step), which each step replaces. A step reads no maximum before it rounds.

The pass runs before the graph is differentiated. The largest |dy| of a call comes back as the
"gradient" of an input that nothing computes with, a probe: `finish` takes the probes out again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import HALVES
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.scopes import COMPOSITES, origin, standard
from onward.passes.float8_functions import (
    E4M3,
    FLOAT8_LINEAR,
    LARGEST_E4M3,
    LARGEST_E5M2,
    add_float8_function,
)
from onward.passes.value_facts import attribute
from onward.programs.program import FLOAT8_HISTORY as HISTORY
from onward.programs.program import Array

NEW_HISTORY = f"{HISTORY}.new"
STEPS = 16  # whose largest values a scale is computed of
_FACTOR = 16  # sides of a weight must be multiples of it
_FIRST_X, _FIRST_DY = 32.0, 1.0  # taken for the largest values in the first step
_PRODUCTS = ("MatMul", "Gemm")
_MOVING = ("Cast", "Transpose", "Identity")


@dataclass(frozen=True)
class Float8Products:
    """The calls of a graph that compute in 8 bits, until it has been differentiated."""

    calls: list[ir.Node]
    initial: Array  # the history before the first step

    @property
    def probes(self) -> list[str]:
        """The inputs whose "gradients" are the largest |dy|."""
        return [str(_probe(call).name) for call in self.calls]

    def finish(self, model: ir.Model, gradients: Mapping[str, str]) -> None:
        """Write the new history, and take the probes out of the graph."""
        op, graph = extend(model), model.graph
        outputs = {str(value.name): value for value in graph.outputs}
        rows = []
        for call in self.calls:
            probe = _probe(call)
            name = gradients.get(str(probe.name))
            found = op.constant(np.zeros(1, np.float32)) if name is None else outputs[name]
            rows.append(op.Reshape(op.Concat(call.outputs[3], found, axis=0), np.array([1, 3, 1])))
            graph.outputs[:] = [value for value in graph.outputs if value is not found]
            call.resize_inputs(3)
            graph.inputs.remove(probe)
        history = next(value for value in graph.inputs if value.name == HISTORY)
        older = op.Slice(history, np.array([0]), np.array([STEPS - 1]), np.array([2]))
        new = op.Concat(op.Concat(*rows, axis=0), older, axis=2)
        new.name, new.dtype, new.shape = NEW_HISTORY, ir.DataType.FLOAT, history.shape
        graph.outputs.append(new)


def use_float8(
    model: ir.Model, weights: Mapping[str, Array], trained: Collection[str]
) -> Float8Products:
    """Compute products of linear layers in 8 bits, in place: after the pass of 16 bits.

    Those of two 16-bit inputs, one a trained matrix whose sides are multiples of 16. The products
    after which no other one comes, such as a classifier's last layer, stay in 16 bits.
    """
    products = {node for node in model.graph if not node.domain and node.op_type in _PRODUCTS}
    chosen = [
        node
        for node in model.graph
        if _weight_of(node, trained) is not None and _reaches(node, products - {node})
    ]
    if not chosen:
        raise OptionError(
            "precision: no product for fp8: it takes a MatMul or Gemm with a trained matrix whose "
            "sides are multiples of 16, and another product after it\nleave `products` out"
        )
    initial = np.zeros((len(chosen), 3, STEPS), np.float32)
    op = extend(model)
    history = op.input(HISTORY, "float32", initial.shape)
    scales = _scales(op, history)
    add_float8_function(model.functions, FLOAT8_LINEAR, model.opset_imports[""])
    model.opset_imports.setdefault(COMPOSITES, 1)
    calls = []
    for i, node in enumerate(chosen):
        name = _weight_of(node, trained)
        assert name is not None
        first = _FIRST_X, float(np.abs(weights[name]).max()), _FIRST_DY
        initial[i, :, -1] = first  # the oldest: gone after the first step
        calls.append(_replace(op, node, op.Gather(scales, np.int64(i), axis=0), i))
    model.graph.sort()
    return Float8Products(calls, initial)


def _scales(op: GraphOps, history: ir.Value) -> ir.Value:
    """The scales of all calls, (call, x | w | dy); 1 where nothing but zeros has been seen."""
    largest = op.ReduceMax(history, np.array([2]), keepdims=0)
    limits = np.array([LARGEST_E4M3, LARGEST_E4M3, LARGEST_E5M2], np.float32)
    known = op.Greater(largest, np.float32(0))
    scales: ir.Value = op.Where(known, op.Div(largest, limits), np.float32(1))
    return scales


def _replace(op: GraphOps, node: ir.Node, scales: ir.Value, i: int) -> ir.Node:
    """Replace a product by a call."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None and w.shape is not None and x.shape is not None
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        w = op.Transpose(w, perm=[1, 0])
    probe = op.input(f"{HISTORY}.probe_{i}", "float32", (1,))
    call = ir.Node(
        COMPOSITES,
        FLOAT8_LINEAR,
        [x, w, scales, probe],
        num_outputs=4,
        name=f"{node.name or node.op_type}.float8",
    )
    y, qx, qw, largest = call.outputs
    for value in call.outputs:
        value.name = op.name(FLOAT8_LINEAR)
    old = node.outputs[0]
    y.type, y.shape = x.type, old.shape
    qx.dtype, qx.shape, qw.dtype, qw.shape = E4M3, x.shape, E4M3, w.shape
    largest.dtype, largest.shape = ir.DataType.FLOAT, ir.Shape((2,))
    op.graph.append(call)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    new = y if bias is None else op.Add(y, bias)
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    name = old.name
    op.graph.remove(node, safe=True)
    new.name = name
    return call


def _weight_of(node: ir.Node, trained: Collection[str]) -> str | None:
    """The trained matrix that a product reads, if it can be computed in 8 bits."""
    if node.domain or node.op_type not in _PRODUCTS:
        return None
    if node.op_type == "Gemm" and (
        attribute(node, "transA", 0)
        or attribute(node, "alpha", 1.0) != 1.0
        or attribute(node, "beta", 1.0) != 1.0
    ):
        return None
    x, w = node.inputs[:2]
    if x is None or w is None or x.dtype not in HALVES or w.dtype != x.dtype:
        return None
    if x.shape is None or len(x.shape) < 2 or w.shape is None or len(w.shape) != 2:
        return None
    if not all(isinstance(size, int) and size % _FACTOR == 0 for size in w.shape):
        return None
    name = origin(w, standard(_MOVING)).name
    return name if name in trained else None


def _reaches(node: ir.Node, others: Collection[ir.Node]) -> bool:
    """Whether one of the other nodes depends on this one."""
    seen, waiting = {node}, [node]
    while waiting:
        for value in waiting.pop().outputs:
            for reader in value.consumers():
                if reader in others:
                    return True
                if reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
    return False


def _probe(call: ir.Node) -> ir.Value:
    probe = call.inputs[3]
    assert probe is not None
    return probe
