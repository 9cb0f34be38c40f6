"""Scores of ai.onnx.ml as stock onnxruntime gives them: their slopes are the rules' gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.errors import MissingGradient, OptionError
from tests.models_ml import B, W, classifier, ml, model, table, zipped_classifier

# apart from each other and from zero: no kinks within a step
X = np.random.default_rng(3).permutation((np.arange(20) - 9.6) / 5).reshape(5, 4).astype(np.float32)
V = np.random.default_rng(4).normal(size=(5, 4)).astype(np.float32)


def linear(rows: int, transform: str, labels: int, scale: float = 1.0) -> Any:
    return ml(
        "LinearClassifier",
        ["x"],
        ["label", "y"],
        coefficients=(W[:rows] * scale).reshape(-1).tolist(),
        intercepts=(0.3 + 0.2 * B[:rows]).tolist(),
        classlabels_ints=list(range(labels)),
        post_transform=transform,
    )


def machine(counts: list[int], kernel: str = "RBF", **more: Any) -> Any:
    pairs = len(counts) * (len(counts) - 1) // 2
    coefficients = np.random.default_rng(5).normal(size=(len(counts) - 1) * sum(counts))
    return ml(
        "SVMClassifier",
        ["x"],
        ["label", "y"],
        coefficients=coefficients.tolist(),
        support_vectors=V[: sum(counts)].reshape(-1).tolist(),
        vectors_per_class=counts,
        rho=[0.1 * i for i in range(pairs)],
        kernel_type=kernel,
        kernel_params=[0.3, 0.2, 3.0],
        classlabels_ints=list(range(len(counts))),
        **more,
    )


PROBABLE: dict[str, Any] = {"prob_a": [-1.5], "prob_b": [0.2]}
CASES = {
    **{f"one row, {t}": linear(1, t, 2) for t in ("NONE", "LOGISTIC", "SOFTMAX")},
    **{
        f"three rows, {t}": linear(3, t, 3) for t in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    },
    "probit": linear(2, "PROBIT", 2, 0.05),
    **{f"two classes, {t}": machine([2, 3], post_transform=t) for t in ("NONE", "LOGISTIC")},
    **{f"two classes, {k}": machine([2, 3], k) for k in ("LINEAR", "POLY", "SIGMOID")},
    "two classes, probabilities": machine([2, 3], **PROBABLE),
    "three classes, softmax": machine([2, 1, 2], post_transform="SOFTMAX"),
    "normalized by the largest": ml("Normalizer", ["x"], ["y"], norm="MAX"),
    "normalized by the sum": ml("Normalizer", ["x"], ["y"], norm="L1"),
}


def slopes(proto: onnx.ModelProto, cotangent: Any, step: float = 2e-2) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = np.zeros(X.shape)
    for index in np.ndindex(*X.shape):
        ends = []
        for sign in (1, -1):
            x = X.copy()
            x[index] += sign * step
            ends.append((session.run(["y"], {"x": x})[0].astype(np.float64) * cotangent).sum())
        found[index] = (ends[0] - ends[1]) / (2 * step)
    return found


@pytest.mark.parametrize("node", CASES.values(), ids=list(CASES))
def test_a_gradient_is_the_slope_of_what_onnxruntime_computes(node: Any) -> None:
    proto = model([node], [table()], list(node.output))
    y = onnxruntime.InferenceSession(proto.SerializeToString()).run(["y"], {"x": X})[0]
    cotangent = np.random.default_rng(6).normal(size=y.shape).astype(np.float32)
    session = onward.InferenceSession(onward.gradient(proto, {"y": "dy"}, "x"))
    (gradient,) = session.run(["x_grad"], {"x": X, "dy": cotangent})
    expected = slopes(proto, cotangent)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gradient, expected, rtol=2e-2, atol=2e-2 * scale)


def test_normalizing_a_row_of_zeros_keeps_it() -> None:
    proto = model([ml("Normalizer", ["x"], ["y"], norm="L2")], [table()], ["y"])
    session = onward.InferenceSession(onward.gradient(proto, {"y": "dy"}, "x"))
    ones = np.ones((1, 4), np.float32)
    (gradient,) = session.run(["x_grad"], {"x": np.zeros((1, 4), np.float32), "dy": ones})
    assert np.isfinite(gradient).all()


def test_probabilities_of_several_classes_without_a_gradient_are_refused() -> None:
    node = machine([2, 1, 2], prob_a=[-1.0] * 3, prob_b=[0.0] * 3)
    with pytest.raises(MissingGradient, match="more than two classes come from an iteration"):
        onward.gradient(model([node], [table()], ["label", "y"]), {"y": "dy"}, "x")


def test_coefficients_have_gradients_by_their_nodes_names() -> None:
    proto = classifier()
    names = ["LinearClassifier.coefficients", "LinearClassifier.intercepts"]
    extended = onward.gradient(proto, {"scores": "dy"}, names)
    assert [str(value.name) for value in extended.graph.outputs][-2:] == [
        f"{n}_grad" for n in names
    ]
    session = onward.InferenceSession(extended)
    cotangent = np.ones((5, 3), np.float32) * [1.0, 0.0, 0.0]
    dw, db = session.run([f"{n}_grad" for n in names], {"x": X, "dy": cotangent.astype(np.float32)})
    assert dw.shape == (3, 4) and db.shape == (3,) and np.abs(dw).max() > 0


def test_a_list_of_maps_has_no_gradient_and_names_the_tensor() -> None:
    with pytest.raises(
        OptionError, match=r"list of maps \(ZipMap\): it has no gradient\n.*'scores'"
    ):
        onward.gradient(zipped_classifier(), {"maps": "dy"}, "x")


def test_labels_have_no_gradient_and_the_scores_are_named() -> None:
    with pytest.raises(OptionError, match=r"'label' is not of a float type.*\n.*'scores'"):
        onward.gradient(zipped_classifier(), {"label": "dy"}, "x")


def test_the_gradient_model_still_returns_maps() -> None:
    extended = onward.gradient(zipped_classifier(), {"scores": "dy"}, "x")
    feeds = {"x": X, "dy": np.ones((5, 3), np.float32)}
    maps, gradient = onward.InferenceSession(extended).run(["maps", "x_grad"], feeds)
    assert list(maps[0]) == [0, 1, 2] and gradient.shape == X.shape
