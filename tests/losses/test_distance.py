"""onward/losses/distance.py against torch."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onward.errors import OptionError
from onward.losses.distance import Cosine, Triplet
from tests.losses.case import (
    DOUBLE,
    Case,
    check,
    echo,
    expected,
    inputs_of,
    measured,
    normal,
    with_loss,
)

REDUCTIONS = ("mean", "sum", "none")
LABELS = np.array([1, -1, 1, -1, -1])


def _cosine(reduction: str, margin: float) -> Case:
    def torch_loss(y: Any, y2: Any, labels: Any) -> Any:
        return F.cosine_embedding_loss(y, y2, labels, margin=margin, reduction=reduction)

    loss = Cosine(target="y2", labels="labels", margin=margin, reduction=reduction)
    feeds = {"y": normal(5, 3), "y2": normal(5, 3, seed=4), "labels": LABELS}
    return Case(f"cosine, {reduction}, {margin}", loss, feeds, torch_loss)


def _triplet(reduction: str, settings: dict[str, Any]) -> Case:
    def torch_loss(y: Any, y_near: Any, y_far: Any) -> Any:
        return F.triplet_margin_loss(y, y_near, y_far, reduction=reduction, **settings)

    loss = Triplet(positive="y_near", negative="y_far", reduction=reduction, **settings)
    feeds = {"y": normal(5, 3), "y_near": normal(5, 3, seed=1), "y_far": normal(5, 3, seed=2)}
    return Case(f"triplet, {reduction}, {settings}", loss, feeds, torch_loss)


CASES = [
    *(_cosine(*both) for both in product(REDUCTIONS, (0.0, 0.4, -0.5))),
    *(_triplet(reduction, {}) for reduction in REDUCTIONS),
    *(
        _triplet("mean", settings)
        for settings in (
            {"margin": 0.3},
            {"swap": True},
            {"p": 1.0},
            {"p": 3.0, "swap": True},
            {"p": float("inf")},
            {"eps": 1e-3, "margin": 2.0},
        )
    ),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_distance_losses_match_torch_on_stock_onnxruntime(case: Case, dynamic: bool) -> None:
    check(case, np.float32, 1e-5, dynamic=dynamic)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_distance_losses_match_torch_in_float64(case: Case) -> None:
    check(case, np.float64, 1e-10, dynamic=True, providers=DOUBLE)


def test_without_labels_every_pair_is_similar() -> None:
    def torch_loss(y: Any, target: Any) -> Any:
        return F.cosine_embedding_loss(y, target, torch.ones(5))

    feeds = {"y": normal(5, 3), "target": normal(5, 3, seed=4)}
    check(Case("alike", Cosine(), feeds, torch_loss), np.float32, 1e-5)


def test_the_other_vectors_and_the_labels_can_be_inputs() -> None:
    model = with_loss(echo({"y": normal(5, 3)}, dynamic=True), Cosine(labels="same"))
    assert inputs_of(model)["target"] == ("DOUBLE", ["n5", "n3"])
    assert inputs_of(model)["same"] == ("INT64", ["n5"])


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e4, 1e12])
def test_vectors_of_any_length_have_a_finite_cosine_and_gradient(scale: float) -> None:
    known = _cosine("mean", 0.0)
    feeds = {**known.feeds, "y": scale * known.feeds["y"], "y2": scale * known.feeds["y2"]}
    case = Case("scaled", known.loss, feeds, known.torch)
    loss, gradients = measured(case, np.float32)
    exact, slopes = expected(case, np.float64)  # in float32 torch's own lengths overflow
    np.testing.assert_allclose(loss, exact, rtol=1e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradients[name], slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [_cosine("mean", 0.1), _triplet("mean", {})], ids=["cos", "tri"])
def test_sixteen_bits_are_widened(case: Case) -> None:
    outputs = {name: feed.astype(np.float16) for name, feed in case.outputs.items()}
    model = with_loss(echo(outputs), case.loss)
    dtype = model.graph.outputs[-1].dtype
    assert dtype is not None and dtype.name == "FLOAT"


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(OptionError, match=r"Cosine.margin must be a number from -1 to 1, not 1\.5"):
        Cosine(margin=1.5)
    with pytest.raises(OptionError, match=r"Triplet.margin must be a number above 0, not 0"):
        Triplet(margin=0)
    with pytest.raises(OptionError, match=r"Triplet.p must be a number above 0, not -2"):
        Triplet(p=-2)
    with pytest.raises(OptionError, match=r"Triplet.eps must be a number, at least 0, not -1"):
        Triplet(eps=-1)
    with pytest.raises(OptionError, match=r"Triplet.reduction must be one of .*, not 'max'"):
        Triplet(reduction="max")


def test_a_triplet_is_of_the_models_own_values() -> None:
    model = echo({"y": normal(5, 3), "y_near": normal(5, 3)})
    message = r"reads 'negative', which the model does not have\nits values are 'y', 'y_near', "
    with pytest.raises(OptionError, match=message):
        with_loss(model, Triplet(positive="y_near"))


def test_vectors_of_a_triplet_have_one_shape() -> None:
    model = echo({"y": normal(5, 3), "y_near": normal(5, 4), "y_far": normal(5, 3)})
    message = r"Triplet compares 'y' of shape \[5, 3\] with 'y_near' of shape \[5, 4\]: they must"
    with pytest.raises(OptionError, match=message):
        with_loss(model, Triplet(positive="y_near", negative="y_far"))


@pytest.mark.parametrize("kind", [Cosine, Triplet])
def test_a_scalar_is_not_a_vector(kind: Any) -> None:
    message = rf"{kind.__name__} needs vectors along the last axis; 'y' has shape \[\]"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": np.array(1.0)}), kind())
