"""onward/losses/classification.py against torch."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onward.errors import OptionError
from onward.losses.classification import KL, BCEWithLogits, CrossEntropy
from tests.losses.case import (
    DOUBLE,
    Case,
    check,
    echo,
    inputs_of,
    integers,
    measured,
    normal,
    values_of,
    with_loss,
)

REDUCTIONS = ("mean", "sum", "none")
WEIGHT = np.array([0.5, 2.0, 1.0, 0.0, 3.0])
SCORES = {
    "rows": (normal(6, 5), integers(5, 6)),
    "images": (normal(2, 5, 3, 2), integers(5, 2, 3, 2)),
}


def _cross_entropy(shape: str, reduction: str, settings: dict[str, Any]) -> Case:
    scores, labels = SCORES[shape]
    settings = dict(settings)
    if "ignore_index" in settings:
        labels = labels.copy()
        labels[0] = settings["ignore_index"]
    if settings.get("soft_labels"):
        labels = np.exp(normal(*scores.shape, seed=3))
        labels = labels / labels.sum(1, keepdims=True)
    loss = CrossEntropy(reduction=reduction, **settings)

    def torch_loss(y: Any, labels: Any) -> Any:
        known = {"label_smoothing": settings.get("label_smoothing", 0.0), "reduction": reduction}
        if "weight" in settings:
            known["weight"] = torch.tensor(settings["weight"]).to(y.dtype)
        if "ignore_index" in settings:
            known["ignore_index"] = settings["ignore_index"]
        return F.cross_entropy(y, labels, **known)

    name = ", ".join([shape, reduction, *settings])
    return Case(f"cross entropy, {name}", loss, {"y": scores, "labels": labels}, torch_loss)


HARD: list[dict[str, Any]] = [
    {**weight, **ignored, **smooth}
    for weight, ignored, smooth in product(
        ({}, {"weight": WEIGHT}),
        ({}, {"ignore_index": -100}, {"ignore_index": 1}),
        ({}, {"label_smoothing": 0.3}),
    )
]
SOFT: list[dict[str, Any]] = [
    {"soft_labels": True, **weight, **smooth}
    for weight, smooth in product(({}, {"weight": WEIGHT}), ({}, {"label_smoothing": 0.3}))
]


def _bce(reduction: str, settings: dict[str, Any]) -> Case:
    def torch_loss(y: Any, target: Any) -> Any:
        weights = {name: torch.tensor(array).to(y.dtype) for name, array in settings.items()}
        return F.binary_cross_entropy_with_logits(y, target, reduction=reduction, **weights)

    feeds = {"y": 3 * normal(4, 5), "target": np.clip(normal(4, 5, seed=2), 0, 1)}
    name = ", ".join(["binary", reduction, *settings])
    return Case(name, BCEWithLogits(reduction=reduction, **settings), feeds, torch_loss)


def _kl(reduction: str, log_target: bool) -> Case:
    def torch_loss(y: Any, target: Any) -> Any:
        return F.kl_div(y, target, reduction=reduction, log_target=log_target)

    target = np.exp(normal(4, 5, seed=2))
    target[0, 0] = 0.0
    target = target / target.sum(1, keepdims=True)
    if log_target:
        target = np.log(target + 0.1)
    feeds = {"y": np.log(np.abs(normal(4, 5))), "target": target}
    loss = KL(reduction=reduction, log_target=log_target)
    return Case(f"kl, {reduction}, {log_target}", loss, feeds, torch_loss)


CASES = [
    *(_cross_entropy("rows", *both) for both in product(REDUCTIONS, HARD + SOFT)),
    *(_cross_entropy("images", "mean", settings) for settings in HARD + SOFT),
    *(_cross_entropy("images", r, s) for r in ("sum", "none") for s in (HARD[-1], SOFT[-1])),
    *(
        _bce(reduction, settings)
        for reduction in REDUCTIONS
        for settings in (
            {},
            {"weight": WEIGHT},
            {"pos_weight": WEIGHT},
            {"weight": np.abs(normal(4, 1)), "pos_weight": np.array(2.5)},
        )
    ),
    *(_kl(*both) for both in product((*REDUCTIONS, "batchmean"), (False, True))),
]


@pytest.mark.sampled("case.name")
@pytest.mark.sampled("dynamic")
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # torch's, of kl_div
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_classification_losses_match_torch_on_stock_onnxruntime(case: Case, dynamic: bool) -> None:
    check(case, np.float32, 1e-5, dynamic=dynamic)


@pytest.mark.sampled("case.loss.__class__", "case.loss.reduction", last=True)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_classification_losses_match_torch_in_float64(case: Case) -> None:
    check(case, np.float64, 1e-10, dynamic=True, providers=DOUBLE)


# -- cross entropy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [s for s in HARD if "label_smoothing" not in s], ids=str)
def test_plain_labels_are_one_operator(settings: dict[str, Any]) -> None:
    model = with_loss(echo({"y": SCORES["rows"][0]}), CrossEntropy(**settings))
    assert [node.op_type for node in model.graph] == ["Identity", "SoftmaxCrossEntropyLoss"]


@pytest.mark.sampled("axis")
@pytest.mark.sampled("settings", "reduction")
@pytest.mark.sampled("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("settings", [HARD[0], HARD[-1], SOFT[-1]], ids=str)
@pytest.mark.parametrize("axis", [-1, 0, 2])
def test_the_classes_may_be_on_any_axis(
    axis: int, settings: dict[str, Any], reduction: str, dynamic: bool
) -> None:
    known = _cross_entropy("images", reduction, settings)
    soft = settings.get("soft_labels")
    labels = known.feeds["labels"]
    feeds = {
        "y": np.moveaxis(known.feeds["y"], 1, axis),
        "labels": np.moveaxis(labels, 1, axis) if soft else labels,
    }

    def torch_loss(y: Any, labels: Any) -> Any:
        labels = torch.movedim(labels, axis, 1) if soft else labels
        return known.torch(torch.movedim(y, axis, 1), labels)

    loss = CrossEntropy(reduction=reduction, axis=axis, **settings)
    check(Case("moved", loss, feeds, torch_loss), np.float32, 1e-5, dynamic=dynamic)


@pytest.mark.parametrize("settings", [HARD[0], HARD[1], HARD[-1], SOFT[-1]], ids=str)
def test_huge_scores_are_finite(settings: dict[str, Any]) -> None:
    known = _cross_entropy("rows", "mean", settings)
    feeds = {**known.feeds, "y": 1e4 * np.sign(known.feeds["y"])}
    check(Case("huge", known.loss, feeds, known.torch), np.float32, 1e-5)


@pytest.mark.parametrize("settings", [HARD[0], HARD[-1], SOFT[-1]], ids=str)
def test_sixteen_bits_are_widened(settings: dict[str, Any]) -> None:
    case = _cross_entropy("rows", "mean", settings)
    feeds = {"y": case.feeds["y"].astype(np.float16), "labels": case.feeds["labels"]}
    loss, gradients = measured(Case("half", case.loss, feeds, case.torch), np.float32)
    exact, slopes = measured(case, np.float32)
    assert loss.dtype == np.float32 and gradients["y"].dtype == np.float16
    np.testing.assert_allclose(loss, exact, rtol=2e-3)
    np.testing.assert_allclose(gradients["y"], slopes["y"], atol=2e-3)


@pytest.mark.parametrize("settings", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1}], ids=str)
def test_if_every_label_is_ignored_the_loss_is_nan_and_gradients_are_zero(
    settings: dict[str, Any],
) -> None:
    case = _cross_entropy("rows", "mean", {"ignore_index": -100, **settings})
    feeds = {"y": case.feeds["y"], "labels": np.full(6, -100)}
    loss, gradients = measured(Case("ignored", case.loss, feeds, case.torch), np.float32)
    assert np.isnan(loss)
    assert (gradients["y"] == 0).all()


def test_labels_are_int64_without_the_axis_of_the_classes() -> None:
    images = {"y": SCORES["images"][0]}
    assert inputs_of(with_loss(echo(images), CrossEntropy()))["labels"] == ("INT64", [2, 3, 2])
    dynamic = with_loss(echo(images, dynamic=True), CrossEntropy(axis=-1, target="t"))
    assert inputs_of(dynamic)["t"] == ("INT64", ["n2", "n5", "n3"])
    soft = with_loss(echo(images), CrossEntropy(soft_labels=True))
    assert inputs_of(soft)["labels"] == ("DOUBLE", [2, 5, 3, 2])


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_labels_of_the_model_may_have_other_integer_types(dtype: Any) -> None:
    scores, labels = SCORES["rows"]
    feeds = {"y": scores.astype(np.float32), "y_labels": labels.astype(dtype)}
    model = with_loss(echo(feeds), CrossEntropy(target="y_labels"))
    assert "labels" not in inputs_of(model)


def test_labels_of_the_model_that_are_floats_are_soft() -> None:
    soft = _cross_entropy("rows", "mean", SOFT[0])
    feeds = {"y": soft.feeds["y"], "y_labels": soft.feeds["labels"]}
    loss = CrossEntropy(target="y_labels")
    case = Case("soft", loss, feeds, lambda y, y_labels: soft.torch(y, y_labels))
    check(case, np.float32, 1e-5)


def test_allowed_labels() -> None:
    scores = {"y": SCORES["rows"][0]}
    assert CrossEntropy().allowed_labels(values_of(echo(scores))) == (0, 5)
    assert CrossEntropy(output="y").allowed_labels(values_of(echo(scores, dynamic=True))) == (
        0,
        None,
    )
    assert CrossEntropy(soft_labels=True).allowed_labels(values_of(echo(scores))) is None


def test_losses_are_values() -> None:
    assert CrossEntropy(weight=np.ones(3)) == CrossEntropy(weight=[1, 1, 1])
    assert hash(BCEWithLogits(weight=np.ones((2, 1)))) is not None
    assert BCEWithLogits(weight=np.ones((2, 1))).weight == ((1.0,), (1.0,))


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_is_a_share(smoothing: float) -> None:
    message = f"CrossEntropy.label_smoothing must be a number from 0 to 1, not {smoothing}"
    with pytest.raises(OptionError, match=message):
        CrossEntropy(label_smoothing=smoothing)


def test_a_weight_per_class() -> None:
    message = r"CrossEntropy\.weight must be one number per class: shape \[5\], not \[4\]"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(6, 5)}), CrossEntropy(weight=np.ones(4)))
    with pytest.raises(OptionError, match=r"shape \[n5\], not \[5, 1\]"):
        with_loss(echo({"y": normal(6, 5)}, dynamic=True), CrossEntropy(weight=np.ones((5, 1))))
    with pytest.raises(
        OptionError, match=r"CrossEntropy.weight must be an array of numbers, not 'ba"
    ):
        CrossEntropy(weight="balanced")
    with pytest.raises(
        OptionError, match=r"CrossEntropy.weight must be an array of finite numbers"
    ):
        CrossEntropy(weight=[1, np.inf])


def test_scores_have_classes() -> None:
    message = r"CrossEntropy needs scores of shape \(batch, classes, ...\); 'y' has shape \[6\]"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(6)}), CrossEntropy())
    message = r"CrossEntropy\.axis is 2, but 'y' has shape \[6, 5\]"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(6, 5)}), CrossEntropy(axis=2))


def test_probabilities_cannot_be_ignored() -> None:
    message = "CrossEntropy cannot ignore labels that are probabilities\ngive those rows"
    with pytest.raises(OptionError, match=message):
        CrossEntropy(soft_labels=True, ignore_index=0)
    feeds = {"y": normal(6, 5), "y_soft": normal(6, 5)}
    with pytest.raises(OptionError, match="probabilities, as 'y_soft' is"):
        with_loss(echo(feeds), CrossEntropy(target="y_soft", ignore_index=0))


def test_soft_labels_are_floats() -> None:
    feeds = {"y": normal(6, 5), "y_hard": integers(5, 6)}
    message = "CrossEntropy has soft_labels, but 'y_hard' is INT64\nleave soft_labels out"
    with pytest.raises(OptionError, match=message):
        with_loss(echo(feeds), CrossEntropy(target="y_hard", soft_labels=True))


# -- the others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"pos_weight": np.array(3.0)}], ids=str)
def test_binary_cross_entropy_of_huge_scores_is_finite(settings: dict[str, Any]) -> None:
    known = _bce("sum", settings)
    feeds = {"y": np.array([1e4, -1e4, 1e4, -1e4, 0, 90]), "target": np.array([1.0, 0, 0, 1, 1, 0])}
    check(Case("huge", known.loss, feeds, known.torch), np.float32, 1e-5)
    check(Case("huge", known.loss, feeds, known.torch), np.float64, 1e-12)


@pytest.mark.parametrize(
    "case", [c for c in CASES if "binary, mean" in c.name], ids=lambda case: case.name
)
def test_binary_cross_entropy_runs_on_stock_onnxruntime_in_float64(case: Case) -> None:
    check(case, np.float64, 1e-10, dynamic=True)


def test_weights_that_do_not_broadcast_are_refused() -> None:
    message = r"BCEWithLogits\.pos_weight has shape \[4\], which does not broadcast to 'y' of sh"
    with pytest.raises(OptionError, match=message):
        with_loss(echo({"y": normal(4, 5)}), BCEWithLogits(pos_weight=np.ones(4)))
    with pytest.raises(OptionError, match=r"BCEWithLogits\.weight has shape \[1, 4, 5\]"):
        with_loss(echo({"y": normal(4, 5)}), BCEWithLogits(weight=np.ones((1, 4, 5))))


def test_kl_takes_a_mean_over_the_batch() -> None:
    with pytest.raises(OptionError, match=r"KL.reduction must be one of .*'batchmean', not 'avg'"):
        KL(reduction="avg")
    with pytest.raises(OptionError, match="KL needs a batch for the reduction 'batchmean'"):
        with_loss(echo({"y": np.array(1.0)}), KL(reduction="batchmean"))
