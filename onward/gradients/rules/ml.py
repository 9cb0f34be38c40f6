"""Gradients of the differentiable operators of ai.onnx.ml, which compute in float32.

Scores have a gradient, labels do not. Weights are attributes, without a gradient here: the pass
`write_linear_models` turns them into initializers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.ml_formulas import (
    linear_coefficients,
    linear_results,
    linear_scores,
    svm_classifier_scores,
    svm_regressor_results,
)
from onward.passes.value_facts import attribute, operators

gradient = GradientTable()

_DOMAIN = "ai.onnx.ml"
_FLOAT = ir.DataType.FLOAT

gradient.none("categories", *operators("CategoryMapper LabelEncoder OneHotEncoder"), domain=_DOMAIN)
gradient.none("maps", *operators("CastMap DictVectorizer ZipMap"), domain=_DOMAIN)
gradient.none(
    "piecewise constant",
    *operators("Binarizer TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor"),
    domain=_DOMAIN,
)


@gradient("Scaler", domain=_DOMAIN)
def scaler(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = (x - offset) scale: dx = dy scale"""
    (x,) = node.inputs
    assert x is not None
    return op.cast_like(op.Mul(dy, np.array(attribute(node, "scale"), np.float32)), x)


@gradient("Imputer", domain=_DOMAIN)
def imputer(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = dy, and 0 where x was replaced"""
    (x,) = node.inputs
    replaced = attribute(node, "replaced_value_float")
    found = op.IsNaN(x) if math.isnan(replaced) else op.Equal(x, replaced)
    return op.Where(found, 0.0, dy)


@gradient("FeatureVectorizer", domain=_DOMAIN)
@formula
def feature_vectorizer(op: GradientOps, node: ir.Node) -> Any:
    """y = the features side by side; a vector is one row"""
    columns = [op.Cast(x, to=_FLOAT) for x in node.inputs]
    rows = [op.Unsqueeze(x, [0]) if rank(x) == 1 else x for x in columns]
    return op.Concat(*rows, axis=1)


@gradient("Normalizer", domain=_DOMAIN)
@formula
def normalizer(op: GradientOps, node: ir.Node) -> Any:
    """y = x / norm(x) row by row: the largest x, the sum of |x|, or the root of the sum of x^2

    As in onnxruntime: the largest is not that of |x|, and a row with norm 0 is not changed.
    """
    x = op.Cast(node.inputs[0], to=_FLOAT)
    norm = attribute(node, "norm")
    if norm == "MAX":
        length = op.ReduceMax(x, [-1], keepdims=1)
    elif norm == "L1":
        length = op.ReduceSum(op.Abs(x), [-1], keepdims=1)
    else:
        length = op.ReduceL2(x, [-1], keepdims=1)
    return op.Div(x, op.Where(op.Equal(length, 0.0), 1.0, length))


@gradient("LinearRegressor", domain=_DOMAIN)
@formula
def linear_regressor(op: GradientOps, node: ir.Node) -> Any:
    """y = post_transform(x w' + b)"""
    return _linear(op, node)


@gradient("LinearClassifier", domain=_DOMAIN)
@formula
def linear_classifier(op: GradientOps, node: ir.Node) -> Any:
    """scores = post_transform(x w' + b); labels have no gradient"""
    return None, _linear(op, node)


def _linear(op: GradientOps, node: ir.Node) -> ir.Value:
    w, b = linear_coefficients(node)
    return linear_results(op, node, linear_scores(op, node, w, b, w.shape[1]), len(w))


@gradient("SVMRegressor", domain=_DOMAIN)
@formula
def svm_regressor(op: GradientOps, node: ir.Node) -> Any:
    """y = k(x, v) a' + rho"""
    return svm_regressor_results(op, node)


@gradient("SVMClassifier", domain=_DOMAIN)
@formula
def svm_classifier(op: GradientOps, node: ir.Node) -> Any:
    """scores = k(x, v) a' + rho for each pair of classes; labels have no gradient"""
    return None, svm_classifier_scores(op, node)
