"""Types and shapes of ai.onnx.ml, compared with onnxruntime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.graph.files import load
from onward.graph.shapes.infer import fix_dimensions, infer_shapes
from tests.models_ml import FLOAT, INT64, STRING, ml, model, scaler, table

F = np.arange(12, dtype=np.float32).reshape(3, 4)
V = np.arange(4, dtype=np.float32)
N = F.astype(np.int64)
T = np.array([["a", "b", "c"]] * 2, object)

_TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [1.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
_CLASSES: dict[str, Any] = {
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 1],
    "class_weights": [1.0, 1.0],
}
_TARGETS: dict[str, Any] = {
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 1],
    "target_weights": [1.0, 1.0],
    "n_targets": 2,
}


def _machine(counts: list[int], **more: Any) -> dict[str, Any]:
    total, classes = sum(counts), len(counts)
    return {
        "coefficients": [0.5] * (total * (classes - 1)),
        "support_vectors": [0.25] * (total * 4),
        "vectors_per_class": counts,
        "rho": [0.1] * (classes * (classes - 1) // 2),
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "classlabels_ints": list(range(classes)),
        **more,
    }


def _proba(count: int) -> dict[str, Any]:
    return {"prob_a": [-1.0] * count, "prob_b": [0.0] * count}


CASES = [
    *(("Scaler", [x], {"offset": [1.0], "scale": [2.0]}) for x in (F, V, N, F.astype(np.float64))),
    *(("Normalizer", [x], {"norm": "L2"}) for x in (F, V, N)),
    ("Imputer", [F], {"imputed_value_floats": [1.0]}),
    ("Imputer", [N], {"imputed_value_int64s": [1], "replaced_value_int64": 2}),
    ("Binarizer", [F], {}),
    ("ArrayFeatureExtractor", [F, np.array([0, 2])], {}),
    ("ArrayFeatureExtractor", [F, np.array([[0, 2]])], {}),
    ("ArrayFeatureExtractor", [V, np.array([1])], {}),
    ("OneHotEncoder", [N], {"cats_int64s": [1, 2, 3]}),
    ("OneHotEncoder", [T], {"cats_strings": ["a", "b"]}),
    ("FeatureVectorizer", [F, F], {"inputdimensions": [4, 4]}),
    ("FeatureVectorizer", [V], {"inputdimensions": [4]}),
    ("LabelEncoder", [T], {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}),
    ("LabelEncoder", [N], {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}),
    ("CategoryMapper", [T], {"cats_strings": ["a", "b"], "cats_int64s": [1, 2]}),
    ("LinearRegressor", [F], {"coefficients": [0.5] * 8, "targets": 2}),
    ("LinearRegressor", [V], {"coefficients": [0.5] * 4}),
    *(
        (
            "LinearClassifier",
            [x],
            {"coefficients": [0.5] * 12, "intercepts": [0.0] * 3, "classlabels_ints": [4, 5, 6]},
        )
        for x in (F, V, N)
    ),
    (
        "LinearClassifier",
        [F],
        {"coefficients": [0.5] * 4, "intercepts": [0.0], "classlabels_strings": ["no", "yes"]},
    ),
    ("SVMClassifier", [F], _machine([2, 3])),
    ("SVMClassifier", [F], _machine([2, 3], **_proba(1))),
    ("SVMClassifier", [F], _machine([1, 1, 2])),
    ("SVMClassifier", [F], _machine([1, 1, 2, 1])),
    ("SVMClassifier", [F], _machine([1, 1, 2, 1], **_proba(6))),
    (
        "SVMRegressor",
        [F],
        {
            "coefficients": [1.0],
            "support_vectors": [0.5] * 4,
            "n_supports": 1,
            "rho": [0.0],
            "kernel_params": [0.5, 0.0, 3.0],
        },
    ),
    ("TreeEnsembleClassifier", [F], {**_TREE, **_CLASSES, "classlabels_int64s": [7, 8]}),
    ("TreeEnsembleClassifier", [F], {**_TREE, **_CLASSES, "classlabels_strings": ["a", "b"]}),
    ("TreeEnsembleRegressor", [F], {**_TREE, **_TARGETS}),
]


@pytest.mark.integration
@pytest.mark.parametrize("sized", [True, False], ids=["sizes known", "rows unknown"])
@pytest.mark.parametrize(
    ("operator", "feeds", "attributes"), CASES, ids=[f"{c[0]} {i}" for i, c in enumerate(CASES)]
)
def test_types_and_shapes_equal_onnxruntime(
    operator: str, feeds: list[Any], attributes: dict[str, Any], sized: bool
) -> None:
    names = ["x", "i"][: len(feeds)]
    outputs = ["y", "z"][: 2 if "Classifier" in operator else 1]
    inputs = [_declared(name, feed, sized) for name, feed in zip(names, feeds)]
    proto = model([ml(operator, names, outputs, **attributes)], inputs, outputs, version=3)
    values = infer_shapes(load(proto)).graph.outputs
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    results = session.run(None, dict(zip(names, feeds)))
    for value, result in zip(values, results, strict=True):
        assert value.shape is not None and len(value.shape) == result.ndim
        for size, real in zip(value.shape, result.shape):
            assert size == real if isinstance(size, int) else not sized
        kind = (
            ir.DataType.STRING if result.dtype == object else ir.DataType.from_numpy(result.dtype)
        )
        assert value.dtype == kind


def _declared(name: str, feed: Any, sized: bool) -> Any:
    kind = STRING if feed.dtype == object else helper.np_dtype_to_tensor_dtype(feed.dtype)
    free = feed.ndim > 1 and not sized and name == "x"
    return helper.make_tensor_value_info(
        name, kind, [*(["n"] if free else feed.shape[:1]), *feed.shape[1:]]
    )


def _weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def _alternating() -> ir.Model:
    """What onnx infers and what it does not, by turns."""
    nodes = [
        scaler("x", "a"),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        ml("Normalizer", ["b"], ["c"], norm="L2"),
        helper.make_node("Relu", ["c"], ["d"]),
        scaler("d", "e", columns=8),
        helper.make_node("MatMul", ["e", "v"], ["y"]),
    ]
    return load(model(nodes, [table()], ["y"], [_weight("w", 4, 8), _weight("v", 8, 3)]))


def test_shapes_flow_through_alternating_operators() -> None:
    found = infer_shapes(_alternating())
    shapes = [list(node.outputs[0].shape or ()) for node in found.graph]
    assert [[getattr(size, "value", size) for size in shape] for shape in shapes] == [
        ["n", 4], ["n", 8], ["n", 8], ["n", 8], ["n", 8], ["n", 3],
    ]  # fmt: skip


def test_fixed_dimensions_flow_through_ml_operators() -> None:
    found = fix_dimensions(_alternating(), {"n": 5})
    assert [list(node.outputs[0].shape or ()) for node in found.graph][-1] == [5, 3]


def test_declared_output_shapes_are_kept() -> None:
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    (output,) = infer_shapes(load(model([scaler("x", "y")], [table()], [declared]))).graph.outputs
    assert str(output.shape) == "[rows,4]"


def test_ranks_of_tables_need_no_input_shape() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        ml("LinearRegressor", ["r"], ["y"], coefficients=[0.5] * 4),
    ]
    inputs = [table(), helper.make_tensor_value_info("s", INT64, ["k"])]
    (output,) = infer_shapes(load(model(nodes, inputs, ["y"]))).graph.outputs
    assert output.dtype == ir.DataType(FLOAT) and len(output.shape or ()) == 2
