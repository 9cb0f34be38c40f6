"""Infer the output types and shapes of ai.onnx.ml's operators, most of which ONNX leaves unknown.

One rule for each operator, as onnxruntime computes it: a vector counts as one row, and tables have
a column for each class, target or feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onward.graph.protos import MapType
from onward.graph.scopes import walk

DOMAIN = "ai.onnx.ml"

Size = int | str | None
Kind = ir.TypeProtocol | None
Inferred = list[tuple[Kind, list[Size] | None]]  # of each output: its type, its sizes

_FLOAT = ir.TensorType(ir.DataType.FLOAT)
_INT64 = ir.TensorType(ir.DataType.INT64)
_STRING = ir.TensorType(ir.DataType.STRING)


def mentions_ml(model: ir.Model) -> bool:
    """Whether the model may hold operators of ai.onnx.ml."""
    imports = (model.opset_imports, *(f.opset_imports for f in model.functions.values()))
    return any(DOMAIN in each for each in imports)


def infer_all_ml(model: ir.Model) -> bool:
    """Infer every node of ai.onnx.ml; whether anything was new."""
    return sum(infer_ml(node) for node in walk(model.graph) if node.domain == DOMAIN) > 0


def infer_ml(node: ir.Node) -> bool:
    """Write types and shapes onto the node's outputs; whether anything was new."""
    rule = _RULES.get(node.op_type) if node.domain == DOMAIN else None
    if rule is None or not node.inputs or node.inputs[0] is None:
        return False
    found = zip(node.outputs, rule(node))
    return sum(_fill(value, kind, sizes) for value, (kind, sizes) in found if value.name) > 0


def _fill(value: ir.Value, kind: Kind, sizes: list[Size] | None) -> bool:
    """Fill in an unknown type and unknown sizes; whether there were any."""
    new = value.type is None and kind is not None
    if new:
        value.type = kind
    if sizes is None:
        return new
    if value.shape is None:
        value.shape = ir.Shape(sizes)
        return True
    if len(value.shape) != len(sizes):
        return new  # the declared shape stays; the engine reports a wrong one
    pairs = [(_plain(ours), theirs) for ours, theirs in zip(value.shape, sizes)]
    merged = [ours if _is_better(ours, theirs, value) else theirs for ours, theirs in pairs]
    if merged == [ours for ours, _ in pairs]:
        return new
    value.shape = ir.Shape(merged)
    return True


def _is_better(ours: Size, theirs: Size, value: ir.Value) -> bool:
    if isinstance(ours, int) or theirs is None:
        return True
    return ours is not None and (value.is_graph_output() or not isinstance(theirs, int))


def _plain(size: Any) -> Size:
    return size if isinstance(size, int) else size.value


# -- parts of the rules --------------------------------------------------------------------------


def _sizes(x: ir.Value | None) -> list[Size] | None:
    return None if x is None or x.shape is None else [_plain(size) for size in x.shape]


def _rows(node: ir.Node) -> Size:
    """How many rows the first input has: a vector is one."""
    sizes = _sizes(node.inputs[0])
    if not sizes:
        return None
    return 1 if len(sizes) == 1 else sizes[0]


def _many(node: ir.Node, name: str) -> int:
    """The length of an attribute that is a list; 0 if it is missing."""
    attribute = node.attributes.get(name)
    value = None if attribute is None else attribute.value
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 0


def _labels(node: ir.Node, ints: str) -> tuple[Kind, int]:
    """The type of a classifier's labels, and how many there are."""
    if count := _many(node, "classlabels_strings"):
        return _STRING, count
    return _INT64, _many(node, ints)


def _like(node: ir.Node) -> Inferred:
    """The first input's type and shape."""
    x = node.inputs[0]
    return [(None if x is None else x.type, _sizes(x))]


def _float_like(node: ir.Node) -> Inferred:
    return [(_FLOAT, _sizes(node.inputs[0]))]


# -- one rule for each operator-------------------------------------------------------------------


def _extracted(node: ir.Node) -> Inferred:
    """Columns by their numbers: (..., how many)."""
    x, indices = node.inputs[0], node.inputs[1]
    sizes, wanted = _sizes(x), _sizes(indices)
    known = wanted is not None and all(isinstance(size, int) for size in wanted)
    count = math.prod(wanted) if known and wanted is not None else None  # type: ignore[arg-type]
    kind = None if x is None else x.type
    if not sizes:
        return [(kind, None)]
    return [(kind, [1 if len(sizes) == 1 else sizes[0], *sizes[1:-1], count])]


def _mapped(node: ir.Node) -> Inferred:
    """CategoryMapper: strings to integers, integers to strings."""
    x = node.inputs[0]
    texts = x is not None and x.dtype == ir.DataType.STRING
    kind = None if x is None or x.type is None else _INT64 if texts else _STRING
    return [(kind, _sizes(x))]


def _encoded(node: ir.Node) -> Inferred:
    """LabelEncoder: whatever values it has; its first version was a CategoryMapper."""
    attributes = node.attributes
    if "classes_strings" in attributes:
        return _mapped(node)
    kinds = {"values_strings": _STRING, "values_int64s": _INT64, "values_floats": _FLOAT}
    kind: Kind = next((k for name, k in kinds.items() if _many(node, name)), None)
    if kind is None and "values_tensor" in attributes:
        kind = ir.TensorType(attributes["values_tensor"].as_tensor().dtype)
    return [(kind, _sizes(node.inputs[0]))]


def _one_hot(node: ir.Node) -> Inferred:
    """One more axis: the categories."""
    sizes = _sizes(node.inputs[0])
    count = _many(node, "cats_int64s") or _many(node, "cats_strings")
    return [(_FLOAT, None if sizes is None else [*sizes, count])]


def _side_by_side(node: ir.Node) -> Inferred:
    """FeatureVectorizer: (rows, the columns that its inputs have, or that inputdimensions says)."""
    widths_given = node.attributes.get("inputdimensions")
    if widths_given is not None:
        return [(_FLOAT, [_rows(node), sum(widths_given.as_ints())])]
    widths = [(_sizes(x) or [None])[-1] for x in node.inputs]
    known = all(isinstance(width, int) for width in widths)
    return [(_FLOAT, [_rows(node), sum(widths) if known else None])]  # type: ignore[arg-type]


def _classified(node: ir.Node) -> Inferred:
    """A label and a score for each class, row by row."""
    kind, count = _labels(node, "classlabels_int64s")
    return [(kind, [_rows(node)]), (_FLOAT, [_rows(node), count or None])]


def _classified_linearly(node: ir.Node) -> Inferred:
    """The same; one row of coefficients for two classes gives two scores."""
    kind, count = _labels(node, "classlabels_ints")
    scores = _many(node, "intercepts") or count or None
    scores = 2 if scores == 1 and count == 2 else scores
    return [(kind, [_rows(node)]), (_FLOAT, [_rows(node), scores])]


def _classified_by_vectors(node: ir.Node) -> Inferred:
    """With probabilities (or linear) a score for each class, else one for each pair of classes."""
    kind, count = _labels(node, "classlabels_ints")
    pairs = count * (count - 1) // 2
    by_class = _many(node, "prob_a") or not _many(node, "vectors_per_class")
    scores = count if by_class else max(pairs, 2)
    return [(kind, [_rows(node)]), (_FLOAT, [_rows(node), scores if count > 1 else None])]


def _regressed(node: ir.Node) -> Inferred:
    """(rows, targets)"""
    return [(_FLOAT, [_rows(node), node.attributes.get_int("targets", 1)])]


def _regressed_by_trees(node: ir.Node) -> Inferred:
    return [(_FLOAT, [_rows(node), node.attributes.get_int("n_targets", 1)])]


def _ensemble(node: ir.Node) -> Inferred:
    """TreeEnsemble: in its input's type."""
    x = node.inputs[0]
    kind = None if x is None else x.type
    return [(kind, [_rows(node), node.attributes.get_int("n_targets", 1)])]


def _vectorized(node: ir.Node) -> Inferred:
    """DictVectorizer: one row, with a column for each word."""
    x = node.inputs[0]
    kind = x.type.elem_type if x is not None and isinstance(x.type, MapType) else None
    return [(kind, [1, _many(node, "string_vocabulary") or _many(node, "int64_vocabulary")])]


def _cast_map(node: ir.Node) -> Inferred:
    """One row of a map's values; a sparse one is as wide as it says."""
    kinds = {"TO_FLOAT": _FLOAT, "TO_STRING": _STRING, "TO_INT64": _INT64}
    kind = kinds.get(node.attributes.get_string("cast_to", "TO_FLOAT"))
    sparse = node.attributes.get_string("map_form", "DENSE") == "SPARSE"
    return [(kind, [1, node.attributes.get_int("max_map", 1) if sparse else None])]


def _zipped(node: ir.Node) -> Inferred:
    """A map from labels to scores for each row."""
    key = ir.DataType.STRING if _many(node, "classlabels_strings") else ir.DataType.INT64
    return [(ir.SequenceType(MapType(key, _FLOAT)), None)]


_RULES: dict[str, Callable[[ir.Node], Inferred]] = {
    "ArrayFeatureExtractor": _extracted,
    "Binarizer": _like,
    "CastMap": _cast_map,
    "CategoryMapper": _mapped,
    "DictVectorizer": _vectorized,
    "FeatureVectorizer": _side_by_side,
    "Imputer": _like,
    "LabelEncoder": _encoded,
    "LinearClassifier": _classified_linearly,
    "LinearRegressor": _regressed,
    "Normalizer": _float_like,
    "OneHotEncoder": _one_hot,
    "SVMClassifier": _classified_by_vectors,
    "SVMRegressor": lambda node: [(_FLOAT, [_rows(node), 1])],
    "Scaler": _float_like,
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classified,
    "TreeEnsembleRegressor": _regressed_by_trees,
    "ZipMap": _zipped,
}
