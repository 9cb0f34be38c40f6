"""Count the FLOPs of ai.onnx.ml: linear models, support vector machines, trees."""

from __future__ import annotations

from collections.abc import Callable

from onward.graph.costs.flops import NodeCall
from onward.graph.operator_table import OpTable
from onward.graph.shapes.ml_operators import DOMAIN

ML_FLOPS = OpTable()

_EACH = {1: "Binarizer", 2: "Scaler Imputer", 3: "Normalizer"}
_MOVING = "ArrayFeatureExtractor CategoryMapper FeatureVectorizer LabelEncoder OneHotEncoder"
_KERNELS = {
    "LINEAR": 0,
    "POLY": 3,
    "SIGMOID": 3,
    "RBF": 2,
}  # FLOPs of an element, after the matrix product
_TRANSFORMS = {"NONE": 0, "LOGISTIC": 4, "SOFTMAX": 5, "SOFTMAX_ZERO": 6, "PROBIT": 12}


def _each(count: int) -> Callable[[NodeCall], float]:
    return lambda call: count * call.out.size


for _count, _names in _EACH.items():
    ML_FLOPS(*_names.split(), domain=DOMAIN)(_each(_count))
ML_FLOPS(*_MOVING.split(), domain=DOMAIN)(lambda call: 0)


def _rows(call: NodeCall) -> int:
    dims = call.input(0).dims
    return dims[0] if len(dims) > 1 else 1


def _numbers(call: NodeCall, name: str) -> int:
    attribute = call.node.attributes.get(name)
    return 0 if attribute is None else len(attribute.value)


def _transform(call: NodeCall) -> float:
    scores = next(tensor for tensor in reversed(call.outputs) if tensor is not None)
    return _TRANSFORMS.get(call.text("post_transform", "NONE"), 0) * scores.size


@ML_FLOPS("LinearClassifier", "LinearRegressor", domain=DOMAIN)
def _linear(call: NodeCall) -> float:
    """x w' + b"""
    each = 2 * _numbers(call, "coefficients") + _numbers(call, "intercepts")
    return _rows(call) * each + _transform(call)


@ML_FLOPS("SVMClassifier", "SVMRegressor", domain=DOMAIN)
def _support_vectors(call: NodeCall) -> float:
    """Each row with each support vector, and the sums of those for each score."""
    held = _numbers(call, "support_vectors")
    counts = call.node.attributes.get_ints("vectors_per_class") or [call.number("n_supports")]
    vectors, kind = sum(counts), call.text("kernel_type", "LINEAR")
    products = (3 if kind == "RBF" else 2) * held + _KERNELS.get(kind, 0) * vectors
    sums = 2 * _numbers(call, "coefficients") + _numbers(call, "rho")
    return _rows(call) * (products + sums) + _transform(call)


@ML_FLOPS("TreeEnsembleClassifier", "TreeEnsembleRegressor", domain=DOMAIN)
def _trees(call: NodeCall) -> float:
    """A comparison for each level of each tree, at its deepest, and a sum of leaves."""
    attributes = call.node.attributes
    trees = [*(attributes.get_ints("nodes_treeids") or ())]
    numbers = [*(attributes.get_ints("nodes_nodeids") or ())]
    below = [
        [*(attributes.get_ints(name) or ())] for name in ("nodes_truenodeids", "nodes_falsenodeids")
    ]
    leaves = {
        place
        for place, mode in enumerate(attributes.get_strings("nodes_modes") or ())
        if mode == "LEAF"
    }
    places = {key: place for place, key in enumerate(zip(trees, numbers))}
    depths: dict[int, int] = {}
    for place in range(len(trees)):
        if place not in leaves:
            for ids in below:
                child = places.get((trees[place], ids[place]))
                if child is not None and child > place:
                    depths[child] = depths.get(place, 0) + 1
    deepest: dict[int, int] = {}
    for place, depth in depths.items():
        deepest[trees[place]] = max(deepest.get(trees[place], 0), depth)
    scores = next(tensor for tensor in reversed(call.outputs) if tensor is not None)
    sums = len(set(trees)) * (scores.size // max(_rows(call), 1))
    return _rows(call) * (sum(deepest.values()) + sums) + _transform(call)
