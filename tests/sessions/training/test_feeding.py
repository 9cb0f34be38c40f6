"""Feeds: what can be an array is one, what cannot is said in one line."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from onward.errors import FeedError
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

FEEDS = batches(1)[0]
METHODS = ("step", "run_forward", "evaluate")


def session(**options: Any) -> TrainingSession:
    return TrainingSession(mlp(dropout=0.5), CrossEntropy(), SGD(lr=0.1), options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("feeds", [None, [FEEDS["x"], FEEDS["labels"]], 3, "x"])
def test_feeds_that_are_no_dictionary_are_refused(feeds: Any, method: str) -> None:
    kind = type(feeds).__name__
    law = rf"feeds are a dictionary of arrays, not {kind}\ngive {{'x': \.\.\., 'labels': \.\.\.}}"
    with pytest.raises(FeedError, match=law):
        getattr(session(), method)(feeds)


def test_a_prediction_says_what_it_takes() -> None:
    with pytest.raises(FeedError, match=r"not list\ngive {'x': \.\.\.}"):
        session().predict([FEEDS["x"]])  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("x", "why"),
    [
        ([[1.0], [2.0, 3.0]], "setting an array element with a sequence"),
        (torch.zeros(12, 8, dtype=torch.bfloat16), "Got unsupported ScalarType BFloat16"),
        (torch.eye(8).to_sparse(), "can't convert Sparse layout tensor to numpy"),
    ],
)
def test_what_is_no_array_is_refused(x: Any, why: str, method: str) -> None:
    with pytest.raises(FeedError, match=rf"input 'x' is no array: {why}.*\ngive a numpy array$"):
        getattr(session(), method)({**FEEDS, "x": x})


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(FeedError, match="no input 3; the model takes 'x', 'labels'"):
        session().step({3: FEEDS["x"], "labels": FEEDS["labels"]})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "x",
    [
        torch.from_numpy(FEEDS["x"]).requires_grad_(),
        torch.from_numpy(FEEDS["x"]).requires_grad_() * 1,
        FEEDS["x"].astype(">f4"),
        np.asfortranarray(FEEDS["x"]),
    ],
    ids=["a leaf", "with a history", "big-endian", "by columns"],
)
def test_tensors_and_arrays_of_every_kind_are_taken(x: Any) -> None:
    plain, other = session(), session()
    expected, found = plain.step(FEEDS), other.step(MappingProxyType({**FEEDS, "x": x}))
    np.testing.assert_array_equal(found["loss"], expected["loss"])
    np.testing.assert_array_equal(other.parameters["w1"], plain.parameters["w1"])
