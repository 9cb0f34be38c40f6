"""Infer shapes that depend on computed values, once the inputs' shapes are all known.

ONNX's own inference stops where a shape is computed by operators that it does not follow. Here
each node is visited once, in order: small integers are computed by ONNX's reference evaluator, and
a node whose output shapes are still unknown is inferred with those numbers as constants.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.graph.operators import MAY_DRAW, SHAPE_ONLY
from onward.graph.scopes import bodies
from onward.graph.shapes.ml_operators import infer_ml
from onward.graph.shapes.node_inference import type_proto
from onward.graph.shapes.subgraph_sizes import TRIPS, scan_length, set_body_sizes, set_output_sizes

_MOST_ELEMENTS = 4096  # of a tensor that is computed: shapes and masks of short sequences

Array = np.ndarray[Any, Any]


def infer_computed_shapes(model: ir.Model) -> ir.Model:
    """Write the shapes that depend on computed values onto the values.

    Values that a loop carries are assumed to keep the sizes that they start with.
    """
    _infer_graph(model.graph, {}, dict(model.opset_imports))
    return model


def _infer_graph(graph: ir.Graph, known: dict[ir.Value, Array], opsets: dict[str, int]) -> None:
    for node in graph:
        inner = bodies(node)
        if not inner:
            _learn_shapes(node, known, opsets)
            _compute(node, known, opsets)
            continue
        trips = _count_trips(node, known)
        for body in inner:
            set_body_sizes(node, body)
            _infer_graph(body, known, opsets)
        set_output_sizes(node, inner, trips)


def _count_trips(node: ir.Node, known: dict[ir.Value, Array]) -> int | None:
    """How often a loop's body runs at most; kept in the node's meta."""
    if node.op_type == "Scan":
        return scan_length(node)
    limit = node.inputs[0] if node.op_type == "Loop" and node.inputs else None
    found = None if limit is None else _array(limit, known)
    if found is None or found.size != 1:
        return None
    node.meta[TRIPS] = max(0, int(found.item()))
    return int(node.meta[TRIPS])


def _learn_shapes(node: ir.Node, known: dict[ir.Value, Array], opsets: dict[str, int]) -> None:
    if all(_is_static(value) for value in node.outputs if value.name) or infer_ml(node):
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return
    given = {value for value in node.inputs if value is not None and value.name}
    if any(value.type is None for value in given):
        return
    types = {str(value.name): type_proto(value) for value in given}
    constants = {}
    for value in given:
        array = _array(value, known)
        if array is not None and array.dtype.kind in "iub":
            constants[str(value.name)] = onnx.numpy_helper.from_array(array, value.name)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    with contextlib.suppress(onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.to_proto(node),
            types,
            constants,
            opset_imports=imports,
            ir_version=onnx.IR_VERSION,
        )
        for value in node.outputs:
            kind = inferred.get(value.name or "")
            if kind is not None and kind.HasField("tensor_type"):
                value.type = value.type or ir.serde.deserialize_type_proto_for_type(kind)
                if kind.tensor_type.HasField("shape") and not _is_static(value):
                    value.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def _compute(node: ir.Node, known: dict[ir.Value, Array], opsets: dict[str, int]) -> None:
    """Compute a node of known, small inputs and small outputs."""
    outputs = [value for value in node.outputs if value.name]
    if node.domain not in ("", "ai.onnx") or node.op_type in MAY_DRAW or not outputs:
        return
    if not all(_is_static(value) and _elements(value) <= _MOST_ELEMENTS for value in outputs):
        return
    feeds: dict[str, Any] = {}
    for value in node.inputs:
        if value is None:
            continue
        array = _array(value, known)
        if array is None and node.op_type in SHAPE_ONLY and _is_static(value):
            array = np.broadcast_to(np.zeros((), np.float32), _dims(value))
        if array is None:
            return
        feeds[str(value.name)] = array
    view = ir.GraphView(
        inputs=list(dict.fromkeys(value for value in node.inputs if value is not None)),
        outputs=outputs,
        nodes=[node],
        opset_imports=opsets,
        name="follow",
    )
    proto = ir.to_proto(ir.Model(view, ir_version=onnx.IR_VERSION))  # type: ignore[arg-type]
    with (
        contextlib.suppress(Exception),
        np.errstate(all="ignore"),
    ):  # else unknown
        results = ReferenceEvaluator(proto).run(None, feeds)
        known.update(
            (v, r) for v, r in zip(outputs, results, strict=True) if isinstance(r, np.ndarray)
        )


def _array(value: ir.Value, known: dict[ir.Value, Array]) -> Array | None:
    if value in known:
        return known[value]
    tensor = value.const_value
    if tensor is None or value.is_graph_input() or tensor.size > _MOST_ELEMENTS:
        return None
    return np.asarray(tensor.numpy())


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(dim, int) and dim >= 0 for dim in value.shape)


def _dims(value: ir.Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.shape or () if isinstance(dim, int))


def _elements(value: ir.Value) -> int:
    return int(np.prod(_dims(value), dtype=np.int64))
