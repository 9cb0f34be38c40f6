"""Linear models of ai.onnx.ml in standard operators: the same results, weights as initializers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from onward.graph.files import load
from onward.graph.protos import to_proto
from onward.passes.linear_models import write_linear_models
from tests.models_ml import B, W, classifier, ml, model, table, zipped_classifier

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def run(proto: onnx.ModelProto, x: Any = X) -> list[Any]:
    return list(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}))


def check(proto: onnx.ModelProto, x: Any = X, atol: float = 1e-5) -> onnx.ModelProto:
    """The results of the rewritten model, which has no such node any more, are the same."""
    written = to_proto(write_linear_models(load(proto)))
    gone = {"LinearClassifier", "LinearRegressor", "SVMRegressor"}
    assert gone.isdisjoint(node.op_type for node in written.graph.node)
    for expected, result in zip(run(proto, x), run(written, x), strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=atol)
        else:
            np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype
    return written


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("labels", [(4, 5, 6), ("a", "b", "c")], ids=["numbers", "texts"])
def test_a_classifier_of_several_classes(transform: str, labels: Any) -> None:
    atol = 1e-4 if transform == "PROBIT" else 1e-5  # near a half, its root cancels in float32
    check(classifier(transform=transform, labels=labels), atol=atol)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_classifier_of_two_rows(transform: str) -> None:
    check(classifier(rows=2, transform=transform, labels=(7, 8)))


@pytest.mark.parametrize("transform", TRANSFORMS[:-1])
@pytest.mark.parametrize("labels", [(7, 8), ("no", "yes"), ()], ids=["numbers", "texts", "none"])
def test_one_row_of_coefficients_for_two_classes(transform: str, labels: Any) -> None:
    check(classifier(rows=1, transform=transform, labels=labels))


def test_nodes_without_a_standard_form_stay() -> None:
    proto = classifier(rows=1, transform="PROBIT", labels=(7, 8))
    written = write_linear_models(load(proto))
    assert [node.op_type for node in written.graph] == ["Scaler", "LinearClassifier"]
    assert not written.graph.initializers


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2])
def test_a_regressor(transform: str, targets: int) -> None:
    node = ml(
        "LinearRegressor",
        ["x"],
        ["y"],
        coefficients=(W[:targets] * 0.1).reshape(-1).tolist(),
        intercepts=[0.5] * targets,
        targets=targets,
        post_transform=transform,
    )
    check(model([node], [table()], ["y"]))


def test_a_regressor_without_intercepts_gets_zeros() -> None:
    node = ml("LinearRegressor", ["x"], ["y"], coefficients=W[0].tolist())
    written = check(model([node], [table()], ["y"]))
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    assert tensors["LinearRegressor.intercepts"].tolist() == [0.0]


def test_a_vector_is_one_row_and_integers_are_cast() -> None:
    node = ml("LinearClassifier", ["x"], ["label", "scores"], coefficients=W.reshape(-1).tolist(),
              intercepts=B.tolist(), classlabels_ints=[0, 1, 2])  # fmt: skip
    vector = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [4])
    check(model([node], [vector], ["label", "scores"]), np.arange(4))


def test_a_linear_support_vector_machine() -> None:
    more = {"rho": [0.5], "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 3.0]}
    vectors = np.random.default_rng(1).normal(size=(5, 4)).reshape(-1).tolist()
    node = ml("SVMRegressor", ["x"], ["y"], coefficients=[0.5, -0.2, 0.1, 0.4, -0.8],
              support_vectors=vectors, n_supports=5, **more)  # fmt: skip
    written = check(model([node], [table()], ["y"]))
    assert written.graph.initializer[0].dims == [1, 4]
    check(
        model(
            [ml("SVMRegressor", ["x"], ["y"], coefficients=W[0].tolist(), **more)], [table()], ["y"]
        )
    )


@pytest.mark.parametrize("more", [{"kernel_type": "RBF"}, {"one_class": 1}])
def test_machines_that_are_not_linear_stay(more: dict[str, Any]) -> None:
    node = ml("SVMRegressor", ["x"], ["y"], coefficients=[1.0], support_vectors=[0.5] * 4,
              n_supports=1, rho=[0.0], **more)  # fmt: skip
    (kept,) = write_linear_models(load(model([node], [table()], ["y"]))).graph
    assert kept.op_type == "SVMRegressor"


def test_weights_are_named_after_their_node_and_values_keep_their_names() -> None:
    written = write_linear_models(load(zipped_classifier()))
    weights = written.graph.initializers
    np.testing.assert_array_equal(weights["LinearClassifier.coefficients"].const_value.numpy(), W)  # type: ignore[union-attr]
    np.testing.assert_array_equal(weights["LinearClassifier.intercepts"].const_value.numpy(), B)  # type: ignore[union-attr]
    assert "scores" in {value.name for node in written.graph for value in node.outputs}


def test_nodes_without_names_get_separate_weights() -> None:
    attributes = {"coefficients": W[0].tolist(), "intercepts": [0.1]}
    nodes = [ml("LinearRegressor", ["x"], [y], **attributes) for y in "abc"]
    nodes[1].name = nodes[2].name = ""
    written = check(model(nodes, [table()], ["a", "b", "c"]))
    assert len({tensor.name for tensor in written.graph.initializer}) == 6


def test_domain_is_removed_with_its_last_node() -> None:
    node = ml("LinearRegressor", ["x"], ["y"], coefficients=W[0].tolist())
    written = write_linear_models(load(model([node], [table()], ["y"])))
    assert list(written.opset_imports) == [""]
    assert "ai.onnx.ml" in write_linear_models(load(classifier())).opset_imports
