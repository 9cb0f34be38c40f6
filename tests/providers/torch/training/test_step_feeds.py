"""Feeds of a training step in torch: tensors in place, the same checks as for arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from onward import losses, optimizers
from onward.errors import FeedError
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp


def session(dropout: float = 0.0) -> TrainingSession:
    return TrainingSession(
        mlp(dropout=dropout),
        losses.CrossEntropy(),
        optimizers.SGD(lr=0.1),
        providers=[("TorchExecutionProvider", {"device": "cpu"})],
    )


def tensors(feeds: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in feeds.items()}


def test_results_have_the_type_of_the_feeds() -> None:
    one, feeds = session(), batches(1)[0]
    assert isinstance(one.step(feeds)["loss"], np.ndarray)
    for results in (
        one.step(tensors(feeds)),
        one.evaluate(tensors(feeds)),
        one.predict({"x": torch.from_numpy(feeds["x"])}),
        one.step({"x": torch.from_numpy(feeds["x"]), "labels": feeds["labels"]}),
    ):
        assert all(isinstance(value, torch.Tensor) for value in results.values())
        assert not any(value.requires_grad for value in results.values())


def test_tensors_and_arrays_train_equally() -> None:
    one, other = session(), session()
    for feeds in batches(4):
        loss = other.step(tensors(feeds))["loss"]
        assert one.step(feeds)["loss"] == loss.item()
    for name in one.parameters:
        np.testing.assert_array_equal(one.parameters[name], other.parameters[name])


def test_feed_with_gradient_or_strides_is_read() -> None:
    one, other, feeds = session(), session(), batches(1)[0]
    x = torch.from_numpy(np.repeat(feeds["x"], 2, 1))[:, ::2].requires_grad_()
    loss = one.step({"x": x, "labels": torch.from_numpy(feeds["labels"])})["loss"]
    assert loss.item() == pytest.approx(float(other.step(feeds)["loss"]))
    assert x.grad is None


def test_tensors_of_other_libraries_are_read_by_dlpack() -> None:
    one, other, feeds = session(), session(), batches(1)[0]
    theirs = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a)._ortvalue for n, a in feeds.items()}
    loss = one.step(theirs)["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.item() == float(other.step(feeds)["loss"])


X, LABELS = torch.zeros(12, 8), torch.zeros(12, dtype=torch.int64)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": (
        {"x": X.double(), "labels": LABELS},
        r"'x' takes tensor\(float\), but was given tensor",
    ),
    "name": ({"x": X, "label": LABELS}, "no input 'label'"),
    "missing": ({"x": X}, "input 'labels' is missing"),
    "rank": ({"x": X[0], "labels": LABELS}, r"'x' takes shape \(batch, 8\), but was given \(8"),
    "size": ({"x": X[:, :3], "labels": LABELS}, "dimension 1 is 3"),
    "samples": ({"x": X, "labels": LABELS[:5]}, "'batch' is 12 in input 'x' but 5 in 'labels'"),
    "class": ({"x": X, "labels": LABELS + 9}, "'labels' holds 9 at .*no parameter was changed"),
    "sparse": ({"x": X.to_sparse(), "labels": LABELS}, "'x' is a sparse tensor\ngive a dense one"),
    "no mapping": (X, "feeds must be a dictionary of arrays, not Tensor"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["step", "run_forward", "evaluate"])
def test_a_feed_that_does_not_fit_is_refused(method: str, name: str) -> None:
    feeds, message = REFUSED[name]
    one = session()
    before = one.parameters["w1"].copy()
    with pytest.raises(FeedError, match=f"(?s){message}"):
        getattr(one, method)(feeds)
    np.testing.assert_array_equal(one.parameters["w1"], before)
    one.step(batches(1)[0])


def test_empty_batch_is_skipped() -> None:
    one = session()
    results = one.step({"x": X[:0], "labels": LABELS[:0]})
    assert torch.isnan(results["loss"]) and results["logits"].shape == (0, 4)
    assert one.steps == 0
    assert np.isnan(one.run_forward({name: a[:0] for name, a in batches(1)[0].items()})["loss"])
    one.run_backward()


def test_random_numbers_are_those_of_the_step() -> None:
    one, other = session(dropout=0.5), session(dropout=0.5)
    first, second = batches(2)
    for feeds in (first, second):
        assert one.step(feeds)["loss"] == other.step(feeds)["loss"]
    one.restore(*session(dropout=0.5).checkpoint())
    again, more = one.step(first)["loss"], one.step(first)["loss"]
    assert again != more  # another step, other elements dropped


def test_shapes_may_change_from_step_to_step() -> None:
    one = session(dropout=0.5)
    for size in (12, 3, 12, 7):
        feeds = {name: array[:size] for name, array in batches(1)[0].items()}
        assert one.step(feeds)["logits"].shape == (size, 4)
