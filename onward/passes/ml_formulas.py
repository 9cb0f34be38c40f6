"""ai.onnx.ml's linear models and support vector machines in standard operators.

They compute what onnxruntime computes, in float32, with its special cases: a vector is one row; one
row of coefficients for two classes gives two scores; a post_transform of a single column does
nothing (except PROBIT). `op` makes nodes: a pass's, or a gradient rule's. Every constant is a numpy
array, because both of them accept it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.value_facts import Array, attribute, rank

_FLOAT = int(ir.DataType.FLOAT)
_NEARLY_ZERO = np.float32(1e-7)  # SOFTMAX_ZERO ignores smaller scores
_LOWEST = np.finfo(np.float32).min
_A = 0.147  # of Winitzki's inverse of erf, which onnxruntime's PROBIT uses


class NotWritten(ValueError):
    """There are no standard operators for a node with these attributes."""


# -- shared helpers --------------------------------------------------------------------------------


def floats(node: ir.Node, name: str) -> Array:
    """An attribute that is a list of floats; empty if it is missing."""
    return np.array(attribute(node, name, ()), np.float32)


def labels_of(node: ir.Node) -> list[Any]:
    """A classifier's labels, strings or integers; empty if it has none."""
    return list(attribute(node, "classlabels_strings") or attribute(node, "classlabels_ints") or ())


def rows(op: Any, node: ir.Node, features: int) -> ir.Value:
    """The input as float32 rows; a vector is one row."""
    x = node.inputs[0]
    assert x is not None
    known = rank(x)
    x = x if x.dtype == ir.DataType.FLOAT else op.Cast(x, to=_FLOAT)
    return x if known == 2 else op.Reshape(x, np.array([-1, features], np.int64))


def transformed(op: Any, scores: ir.Value, columns: int, transform: str) -> ir.Value:
    """A post_transform of scores."""
    if transform == "PROBIT":
        return _probit(op, scores)
    if transform == "NONE" or columns == 1:
        return scores
    if transform == "LOGISTIC":
        return op.Sigmoid(scores)  # type: ignore[no-any-return]
    if transform == "SOFTMAX":
        return op.Softmax(scores, axis=1)  # type: ignore[no-any-return]
    if transform == "SOFTMAX_ZERO":
        counts = op.Greater(op.Abs(scores), _NEARLY_ZERO)
        shares = op.Softmax(op.Where(counts, scores, _LOWEST), axis=1)
        return op.Where(counts, shares, np.float32(0))  # type: ignore[no-any-return]
    raise NotWritten(f"there is no post_transform {transform!r}")


def _probit(op: Any, p: ir.Value) -> ir.Value:
    """sqrt(2) erfinv(2 p - 1), erfinv(t) = sign(t) sqrt(sqrt(v^2 - log(1 - t^2) / a) - v)

    where v = 2 / (pi a) + log(1 - t^2) / 2.
    """
    one = np.float32(1)
    t = op.Sub(op.Add(p, p), one)
    log = op.Log(op.Mul(op.Sub(one, t), op.Add(one, t)))
    v = op.Add(op.Mul(log, np.float32(0.5)), np.float32(2 / (3.14159 * _A)))
    root = op.Sqrt(op.Sub(op.Mul(v, v), op.Mul(log, np.float32(1 / _A))))
    size = op.Sqrt(op.Sub(root, v))
    return op.Mul(op.Mul(op.Sign(t), size), np.float32(np.sqrt(2)))  # type: ignore[no-any-return]


def both_classes(op: Any, score: ir.Value, transform: str) -> ir.Value:
    """Two scores from the one of a linear classifier that has one row of coefficients."""
    if transform == "PROBIT":
        raise NotWritten("onnxruntime's PROBIT of one row of coefficients mixes up rows")
    if transform == "LOGISTIC":
        return _pair(op, op.Sigmoid(op.Neg(score)), op.Sigmoid(score))
    return _pair(op, op.Sub(np.float32(1), score), score)


def _pair(op: Any, first: ir.Value, second: ir.Value) -> ir.Value:
    return op.Concat(first, second, axis=1)  # type: ignore[no-any-return]


# -- linear models ---------------------------------------------------------------------------------


def linear_coefficients(node: ir.Node) -> tuple[Array, Array]:
    """w (columns, features) and b (columns) of a LinearClassifier or LinearRegressor."""
    b = floats(node, "intercepts")
    if node.op_type == "LinearRegressor":
        columns = int(attribute(node, "targets", 1))
        b = b if b.size else np.zeros(columns, np.float32)
    else:
        columns = b.size  # onnxruntime counts the classes by them
    w = floats(node, "coefficients")
    if not columns or w.size % columns or b.size != columns:
        raise NotWritten(f"{w.size} coefficients do not fit {b.size} intercepts")
    return w.reshape(columns, -1), b


def linear_scores(op: Any, node: ir.Node, w: Any, b: Any, features: int) -> ir.Value:
    """x w' + b, before its post_transform"""
    return op.Gemm(rows(op, node, features), w, b, transB=1)  # type: ignore[no-any-return]


def linear_results(op: Any, node: ir.Node, scores: ir.Value, columns: int) -> ir.Value:
    """The scores after the post_transform."""
    transform = str(attribute(node, "post_transform", "NONE"))
    if node.op_type == "LinearClassifier" and columns == 1 and len(labels_of(node)) == 2:
        return both_classes(op, scores, transform)
    return transformed(op, scores, columns, transform)


# -- support vector machines -----------------------------------------------------------------------


def _kernel(op: Any, node: ir.Node, x: ir.Value, vectors: Array) -> ir.Value:
    """k(x, v) of every row with every support vector.

    LINEAR: x v; POLY: (gamma x v + coef0)^degree; SIGMOID: tanh(gamma x v + coef0);
    RBF: exp(-gamma |x - v|^2)
    """
    kind = str(attribute(node, "kernel_type", "LINEAR"))
    gamma, coef0, degree = (*floats(node, "kernel_params"), 0, 0, 0)[:3]
    zero = np.zeros(1, np.float32)
    if kind == "RBF":  # shifted to the mean: the same distances, with smaller rounding errors
        middle = vectors.mean(0)
        x, vectors = op.Sub(x, middle), vectors - middle
    products = op.Gemm(x, vectors, zero, transB=1)
    if kind == "LINEAR":
        return products  # type: ignore[no-any-return]
    if kind == "RBF":
        ones = np.ones((1, vectors.shape[1]), np.float32)
        squares = op.Add(op.Gemm(op.Mul(x, x), ones, zero, transB=1), (vectors**2).sum(1))
        distances = op.Sub(squares, op.Mul(products, np.float32(2)))
        return op.Exp(op.Mul(distances, np.float32(-gamma)))  # type: ignore[no-any-return]
    inner = op.Add(op.Mul(products, np.float32(gamma)), np.float32(coef0))
    if kind == "POLY":
        return op.Pow(inner, np.float32(degree))  # type: ignore[no-any-return]
    if kind == "SIGMOID":
        return op.Tanh(inner)  # type: ignore[no-any-return]
    raise NotWritten(f"there is no kernel {kind!r}")


def regressor_vectors(node: ir.Node) -> Array | None:
    """The support vectors (vectors, features) of an SVMRegressor; None: it is linear."""
    count = int(attribute(node, "n_supports", 0))
    if attribute(node, "one_class", 0):
        raise NotWritten("a one-class SVM returns 1 or -1")
    return floats(node, "support_vectors").reshape(count, -1) if count else None


def svm_regressor_results(op: Any, node: ir.Node) -> ir.Value:
    """k(x, v) a' + rho, or x a' + rho where there are no support vectors"""
    vectors, a = regressor_vectors(node), floats(node, "coefficients").reshape(1, -1)
    x = rows(op, node, a.size if vectors is None else vectors.shape[1])
    products = x if vectors is None else _kernel(op, node, x, vectors)
    return op.Gemm(products, a, floats(node, "rho")[:1], transB=1)  # type: ignore[no-any-return]


def svm_classifier_scores(op: Any, node: ir.Node) -> ir.Value:
    """An SVMClassifier's scores, where they are smooth in x."""
    transform = str(attribute(node, "post_transform", "NONE"))
    counts = [int(each) for each in attribute(node, "vectors_per_class", ())]
    classes = len(labels_of(node))
    coefficients, rho = floats(node, "coefficients"), floats(node, "rho")
    if not sum(counts):
        w = coefficients.reshape(max(classes, 1), -1)
        x = rows(op, node, w.shape[1])
        scores = op.Gemm(x, w, np.full(len(w), rho[0], np.float32), transB=1)
        return transformed(op, scores, len(w), transform)
    vectors = floats(node, "support_vectors").reshape(sum(counts), -1)
    x = rows(op, node, vectors.shape[1])
    products = _kernel(op, node, x, vectors)
    weights = _pair_weights(coefficients.reshape(len(counts) - 1, -1), counts)
    pairs = op.Gemm(products, weights, rho, transB=1)  # (rows, pairs of classes)
    if floats(node, "prob_a").size:
        return transformed(op, _probabilities(op, node, pairs, len(counts)), 2, transform)
    if len(counts) > 2:
        return transformed(op, pairs, len(rho), transform)
    if transform == "NONE":
        return _pair(op, op.Neg(pairs), pairs)
    if transform == "LOGISTIC":
        return both_classes(op, pairs, transform)
    raise NotWritten(f"post_transform {transform} of two classes without probabilities")


def _pair_weights(coefficients: Array, counts: list[int]) -> Array:
    """The weight of each support vector in the score of each pair of classes (i, j), i < j."""
    ends = np.cumsum([0, *counts])
    found = []
    for i in range(len(counts)):
        for j in range(i + 1, len(counts)):
            row = np.zeros(ends[-1], np.float32)
            row[ends[i] : ends[i + 1]] = coefficients[j - 1, ends[i] : ends[i + 1]]
            row[ends[j] : ends[j + 1]] = coefficients[i, ends[j] : ends[j + 1]]
            found.append(row)
    return np.stack(found)


def _probabilities(op: Any, node: ir.Node, pairs: ir.Value, classes: int) -> ir.Value:
    """p = 1 / (1 + exp(a s + b)) and 1 - p, for two classes"""
    if classes != 2:
        raise NotWritten("probabilities of more than two classes come from an iteration")
    a, b = floats(node, "prob_a"), floats(node, "prob_b")
    first = op.Sigmoid(op.Neg(op.Add(op.Mul(pairs, a), b)))
    first = op.Clip(first, _NEARLY_ZERO, np.float32(1) - _NEARLY_ZERO)
    return _pair(op, first, op.Sub(np.float32(1), first))
