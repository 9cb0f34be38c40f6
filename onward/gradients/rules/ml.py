"""ai.onnx.ml: what is smooth in its features. All of it computes in float32.

LinearClassifier, post_transforms and support vector machines have no rule: MissingGradient says so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.facts import attribute, operators

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
    """y = x / norm(x) row by row: the largest |x|, the sum of |x|, or the root of the sum of x^2"""
    x = op.Cast(node.inputs[0], to=_FLOAT)
    norm, size = attribute(node, "norm"), op.Abs(x)
    if norm == "MAX":
        length = op.ReduceMax(size, [-1], keepdims=1)
    elif norm == "L1":
        length = op.ReduceSum(size, [-1], keepdims=1)
    else:
        length = op.ReduceL2(x, [-1], keepdims=1)
    return op.Div(x, op.Where(op.Equal(length, 0.0), 1.0, length))


@gradient("LinearRegressor", domain=_DOMAIN)
@formula
def linear_regressor(op: GradientOps, node: ir.Node) -> Any:
    """y = x w' + b"""
    if attribute(node, "post_transform") != "NONE":
        raise ValueError("of a post_transform there is no gradient rule")
    x = op.Cast(node.inputs[0], to=_FLOAT)
    x = op.Unsqueeze(x, [0]) if rank(x) == 1 else x
    targets = attribute(node, "targets")
    w = np.array(attribute(node, "coefficients"), np.float32).reshape(targets, -1)
    b = np.array(attribute(node, "intercepts") or [0.0] * targets, np.float32)
    return op.Add(op.MatMul(x, w.T.copy()), b)
