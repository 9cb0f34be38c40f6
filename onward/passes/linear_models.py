"""Rewrite linear models of ai.onnx.ml, whose weights are attributes, in standard operators.

    LinearClassifier 'lr'  ->  Gemm(x, lr.coefficients, lr.intercepts), Softmax, ArgMax, Gather
    LinearRegressor, and SVMRegressor whose kernel is linear, likewise

Attributes cannot be differentiated or trained. Afterwards they are initializers, named after the
node. The results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.shapes.infer import infer_shapes
from onward.graph.shapes.ml_operators import DOMAIN
from onward.passes.ml_formulas import (
    NotWritten,
    floats,
    labels_of,
    linear_coefficients,
    linear_results,
    linear_scores,
    regressor_vectors,
    rows,
)
from onward.passes.normalize import name_values, sort_nodes
from onward.passes.rewrite import Names, Ops, discard, nodes_of, replace
from onward.passes.value_facts import Array, attribute

_OLDEST_OPSET = 9  # from here on, the operators used here have the same form


def write_linear_models(model: ir.Model) -> ir.Model:
    """Rewrite every linear model; nodes without a standard form stay."""
    nodes = [node for node in nodes_of(model) if node.domain == DOMAIN and node.op_type in _WRITERS]
    if not nodes or _opset(model) < _OLDEST_OPSET:
        return model
    infer_shapes(name_values(sort_nodes(model)))
    names = Names(model)
    for node in nodes:
        op = Ops()
        weights = _Weights(node, names)
        try:
            values = _WRITERS[node.op_type](op, node, weights)
        except NotWritten:
            discard(op)
            continue
        weights.register()
        _replace_node(node, values, op, names)
    if all(node.domain != DOMAIN for node in nodes_of(model)) and not model.functions:
        model.opset_imports.pop(DOMAIN, None)
    return model


def _replace_node(node: ir.Node, values: Sequence[ir.Value], op: Ops, names: Names) -> None:
    """Replace the node; its outputs keep their names, which losses and gradients refer to."""
    inner = [(y.name, new) for y, new in zip(node.outputs, values) if not y.is_graph_output()]
    replace(node, values[: len(node.outputs)], op, names)
    for name, new in inner:
        if name:
            new.name = name


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))


class _Weights:
    """The initializers that a node's attributes become."""

    def __init__(self, node: ir.Node, names: Names) -> None:
        self._node, self._names = node, names
        self._made: list[tuple[str, ir.Value]] = []

    def __call__(self, kind: str, array: Array) -> ir.Value:
        value = ir.val(None, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        value.const_value = ir.tensor(np.ascontiguousarray(array))
        self._made.append((kind, value))
        return value

    def register(self) -> None:
        """Name them after the node, and put them into its graph."""
        graph = self._node.graph
        assert graph is not None
        for kind, value in self._made:
            value.name = self._names.fresh(f"{self._node.name}.{kind}")
            graph.register_initializer(value)


def _linear(op: Ops, node: ir.Node, weights: _Weights) -> tuple[ir.Value, ir.Value]:
    """The scores before and after the post_transform."""
    w, b = linear_coefficients(node)
    coefficients, intercepts = weights("coefficients", w), weights("intercepts", b)
    scores = linear_scores(op, node, coefficients, intercepts, w.shape[1])
    return scores, linear_results(op, node, scores, len(w))


def _regressor(op: Ops, node: ir.Node, weights: _Weights) -> Sequence[ir.Value]:
    return _linear(op, node, weights)[1:]


def _classifier(op: Ops, node: ir.Node, weights: _Weights) -> Sequence[ir.Value]:
    """The label of the largest score (of one score: whether it is positive), and the scores."""
    scores, results = _linear(op, node, weights)
    columns, labels = len(linear_coefficients(node)[0]), labels_of(node)
    if columns == 1:
        positive = op.Greater(op.Reshape(scores, np.array([-1], np.int64)), np.float32(0))
        chosen = op.Cast(positive, to=int(ir.DataType.INT64))
        labels = labels or [0, 1]
    else:
        chosen = op.ArgMax(scores, axis=1, keepdims=0)
    if len(labels) != max(columns, 2):
        raise NotWritten(f"{len(labels)} labels for {columns} rows of coefficients")
    return op.Gather(op.constant(_tensor(labels)), chosen, axis=0), results


def _tensor(labels: list[str] | list[int]) -> ir.TensorProtocol:
    if isinstance(labels[0], str):
        return ir.StringTensor(
            [str(each).encode() for each in labels], shape=ir.Shape([len(labels)])
        )
    return ir.tensor(np.array(labels, np.int64))


def _svm_regressor(op: Ops, node: ir.Node, weights: _Weights) -> Sequence[ir.Value]:
    """SVMRegressor with a linear kernel: k(x, v) a' = x (a v)', so that its weights are a v."""
    vectors, a = regressor_vectors(node), floats(node, "coefficients").reshape(1, -1)
    if vectors is not None:
        if attribute(node, "kernel_type", "LINEAR") != "LINEAR":
            raise NotWritten("its support vectors are data, not weights")
        a = (a.astype(np.float64) @ vectors.astype(np.float64)).astype(np.float32)
    x, rho = rows(op, node, a.size), floats(node, "rho")[:1]
    return (op.Gemm(x, weights("coefficients", a), weights("intercepts", rho), transB=1),)


_WRITERS = {
    "LinearClassifier": _classifier,
    "LinearRegressor": _regressor,
    "SVMRegressor": _svm_regressor,
}
