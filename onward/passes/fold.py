"""Fold constants: compute nodes that depend on no feed, with ONNX's reference evaluator.

Folding is bounded, because models may be hostile: a node is folded only if its inferred results are
small, or no larger than the constants that they replace, if computing them is cheap, and while the
sum of all results is small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.graph.operators import (
    ELEMENTWISE,
    REARRANGING,
    REDUCTIONS,
    SHAPE_ONLY,
    is_random,
    named,
)
from onward.graph.scopes import bodies
from onward.passes.rewrite import Names, Ops, detach_with_subgraphs, nodes_of, replace, substitute
from onward.passes.value_facts import is_constant, static

_LARGEST_RESULT = 1 << 20  # bytes that folding may add for one node
_LARGEST_WORK = 1 << 28  # bytes read and written by an operator that only moves or maps elements
_LARGEST_TOTAL = 1 << 29  # bytes that one run of folding may add to a model
_LARGEST_HARD_WORK = 1 << 18  # ... by any other operator: its cost may grow faster than its sizes

# Dequantizing weights would undo their compression; providers fuse it themselves. Resize is slow in
# the evaluator, and must round as the engine does, which its gradient assumes.
_KEPT = frozenset(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Resize"])
_EASY = (
    ELEMENTWISE
    | REARRANGING
    | REDUCTIONS
    | SHAPE_ONLY
    | named("CastLike Concat ConstantOfShape Pad Range Trilu")
)


@contextmanager
def as_graph_inputs(graph: ir.Graph, names: Collection[str]) -> Iterator[None]:
    """Make these initializers graph inputs for a time, so that no pass takes them for constants."""
    opened = [graph.initializers[name] for name in names if name in graph.initializers]
    opened = [value for value in opened if not value.is_graph_input()]
    graph.inputs.extend(opened)
    try:
        yield
    finally:
        for value in opened:
            graph.inputs.remove(value)


def fold_constants(model: ir.Model) -> ir.Model:
    """Replace nodes that read constants only by initializers, and a constant If by its branch."""
    names = Names(model)
    opset = model.opset_imports[""]
    left = _LARGEST_TOTAL
    for node in list(nodes_of(model)):
        if node.graph is None or left < 0:
            continue
        if node.op_type == "If" and node.domain == "" and is_constant(node.inputs[0]):
            _take_branch(node, names)
        elif _may_fold(node):
            results = _evaluate(node, opset)
            if results is not None:
                left -= sum(array.nbytes for array in results) - _freed(node)
                op = Ops()
                replace(node, [op.constant(array) for array in results], op, names)
    return model


def _may_fold(node: ir.Node) -> bool:
    given = [value for value in node.inputs if value is not None]
    if not given or not all(is_constant(value) and _is_plain(value) for value in given):
        return False
    if node.domain != "" or node.op_type in _KEPT or is_random(node) or bodies(node):
        return False
    return all(value.name for value in node.outputs)


def _is_plain(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.dtype != ir.DataType.STRING


def _evaluate(node: ir.Node, opset: int) -> list[Any] | None:
    """The node's results; None if they are too large, too slow, or the evaluator fails."""
    written = _result_bytes(node, opset)
    if written is None:
        return None
    given = {value for value in node.inputs if value is not None}
    read = sum(_nbytes(value) for value in given)
    if written > max(_LARGEST_RESULT, _freed(node)):
        return None
    if read + written > (_LARGEST_WORK if node.op_type in _EASY else _LARGEST_HARD_WORK):
        return None
    feeds = {value.name: _array(value) for value in given if value.name}
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(_model_of(node, opset)).run(None, feeds)
    except Exception:  # the evaluator lacks the operator: the node stays
        return None
    arrays = [np.asarray(result) for result in results if not isinstance(result, list)]
    if len(arrays) != len(node.outputs) or not all(map(_fits, arrays, node.outputs)):
        return None
    return arrays


def _freed(node: ir.Node) -> int:
    """Bytes of constants that are unused once this node is folded."""
    given = {value for value in node.inputs if value is not None}
    return sum(_nbytes(v) for v in given if len(v.uses()) == 1 and not v.is_graph_output())


def _fits(array: np.ndarray[Any, Any], value: ir.Value) -> bool:
    """Whether a result has the type and shape that were inferred."""
    if array.dtype.kind in "OSU":
        return False
    if value.dtype is not None and ir.DataType.from_numpy(array.dtype) != value.dtype:
        return False
    shape = static(value)
    return shape is None or shape == array.shape


def _result_bytes(node: ir.Node, opset: int) -> int | None:
    """The size of the results, by ONNX's shape inference on this node with its constants."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    given = {value for value in node.inputs if value is not None}
    types = {v.name: ir.serde.serialize_value(v).type for v in given if v.name}
    small = {v.name: _proto(v) for v in given if v.name and _nbytes(v) <= 8192}
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.to_proto(node),
            types,
            small,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=onnx.IR_VERSION,
        )
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    total = 0
    for value in node.outputs:
        kind = inferred.get(value.name or "")
        if (
            kind is None
            or not kind.HasField("tensor_type")
            or not kind.tensor_type.HasField("shape")
        ):
            return None
        dims = kind.tensor_type.shape.dim
        if not all(dim.HasField("dim_value") for dim in dims):
            return None
        size = ir.DataType(kind.tensor_type.elem_type).itemsize
        total += math.ceil(math.prod(dim.dim_value for dim in dims) * size)
    return total


def _proto(value: ir.Value) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(_array(value), value.name)


def _array(value: ir.Value) -> np.ndarray[Any, Any]:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def _nbytes(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.nbytes


def _model_of(node: ir.Node, opset: int) -> onnx.ModelProto:
    """The node as a model whose constants are inputs, so that nothing large is serialised."""
    inputs = list(dict.fromkeys(value for value in node.inputs if value is not None))
    view = ir.GraphView(
        inputs=inputs, outputs=node.outputs, nodes=[node], opset_imports={"": opset}, name="fold"
    )
    return ir.to_proto(ir.Model(view, ir_version=onnx.IR_VERSION))  # type: ignore[arg-type]


def _take_branch(node: ir.Node, names: Names) -> None:
    """Replace an If with a constant condition by the nodes of its branch."""
    condition = node.inputs[0]
    assert condition is not None and condition.const_value is not None and node.graph is not None
    taken = bool(condition.const_value.numpy().item())
    branch = node.attributes["then_branch" if taken else "else_branch"].as_graph()
    results, nodes = list(branch.outputs), list(branch)
    branch.outputs.clear()
    branch.remove(nodes)
    for name, value in list(branch.initializers.items()):
        del branch.initializers[name]
        node.graph.register_initializer(value)
    node.graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, results, strict=True):
        substitute(old, new, names)
    detach_with_subgraphs(node)  # of the other branch too: what it read may be unused now
    node.graph.remove(node)
