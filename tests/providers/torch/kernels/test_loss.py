"""Losses beyond the node tests of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.providers.torch.one_node import run_op

rng = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def likelihood_loss(
    x: Array, target: Array, weight: Array | None, ignored: int | None, reduction: str
) -> Any:
    """The definition, one element at a time."""
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(*target.shape):
        label = target[place]
        if label != ignored:
            weights[place] = 1 if weight is None else weight[label]
            losses[place] = -x[(place[0], label, *place[1:])] * weights[place]
    if reduction == "none":
        return losses
    return losses.sum() / (weights.sum() if reduction == "mean" else 1)


@pytest.mark.sampled("shape", "reduction")
@pytest.mark.sampled("weighted", "ignored")
@pytest.mark.sampled("dtype")
@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3), (2, 4, 3, 2), (1, 4, 2, 2, 3)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ignored", [None, 2, -1, 9])
@pytest.mark.parametrize("dtype", ["f", "e"])
def test_losses_match_their_definition(
    shape: Any, reduction: str, weighted: bool, ignored: int | None, dtype: str
) -> None:
    scores = rng.standard_normal(shape).astype(dtype)
    labels = rng.integers(0, 4, (shape[0], *shape[2:]), dtype=np.int32)
    if ignored is not None:
        labels.ravel()[::3] = ignored
    weight = rng.random(4).astype(dtype) + 1 if weighted else None
    attributes = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    inputs = [scores, labels, weight]
    wide = scores.astype(np.float64)
    log_prob = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == "f" else {"rtol": 1e-2, "atol": 1e-2}

    (loss,) = run_op("NegativeLogLikelihoodLoss", inputs, attributes)
    expected = likelihood_loss(wide, labels, weight, ignored, reduction)
    assert loss.dtype == scores.dtype
    np.testing.assert_allclose(loss, expected, **tolerance)

    loss, logs = run_op("SoftmaxCrossEntropyLoss", inputs, attributes, outputs=2)
    expected = likelihood_loss(log_prob, labels, weight, ignored, reduction)
    assert loss.dtype == logs.dtype == scores.dtype
    np.testing.assert_allclose(loss, expected, **tolerance)
    np.testing.assert_allclose(logs, log_prob, **tolerance)


def test_the_mean_of_many_float16_losses_does_not_overflow() -> None:
    scores = np.full((100_000, 2), -3.0, np.float16)
    (loss,) = run_op("NegativeLogLikelihoodLoss", [scores, np.zeros(100_000, np.int64)])
    assert loss == 3.0


def test_ignored_scores_may_be_infinite() -> None:
    scores = np.array([[-np.inf, 0.0], [0.0, 0.0]], np.float32)
    labels, attributes = np.array([0, 1]), {"ignore_index": 0, "reduction": "sum"}
    assert run_op("NegativeLogLikelihoodLoss", [scores, labels], attributes)[0] == 0.0
