"""Feeds of training steps: converted to arrays, or refused in one line."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import onward
from onward.errors import FeedError
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram, compile_training
from tests.sessions.training.small import batches, mlp

FEEDS = batches(1)[0]
METHODS = ("step", "run_forward", "evaluate")


@functools.cache
def program(accumulate: int) -> TrainingProgram:
    return compile_training(
        mlp(dropout=0.5), CrossEntropy(), SGD(lr=0.1), {"accumulate": accumulate}
    )


def session(accumulate: int = 1) -> TrainingSession:
    return TrainingSession(program(accumulate))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("feeds", [None, [FEEDS["x"], FEEDS["labels"]], 3, "x"])
def test_feeds_that_are_not_a_dict_are_refused(feeds: Any, method: str) -> None:
    kind = type(feeds).__name__
    law = (
        rf"feeds must be a dictionary of arrays, not {kind}\ngive {{'x': \.\.\., 'labels': \.\.\.}}"
    )
    with pytest.raises(FeedError, match=law):
        getattr(session(), method)(feeds)


def test_predict_error_names_the_inputs() -> None:
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
def test_feed_that_is_not_an_array_is_refused(x: Any, why: str, method: str) -> None:
    with pytest.raises(FeedError, match=rf"input 'x' is not an array: {why}.*\ngive a numpy"):
        getattr(session(), method)({**FEEDS, "x": x})


def test_name_that_is_not_a_string_is_refused() -> None:
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
def test_tensors_and_arrays_of_every_library_are_accepted(x: Any) -> None:
    plain, other = session(), session()
    expected, found = plain.step(FEEDS), other.step(MappingProxyType({**FEEDS, "x": x}))
    np.testing.assert_array_equal(found["loss"], expected["loss"])
    np.testing.assert_array_equal(other.parameters["w1"], plain.parameters["w1"])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "None": (
        {"x": None},
        "input 'x' is not an array of numbers: it is NoneType\ngive a numpy array",
    ),
    "labels None": (
        {"labels": None},
        "input 'labels' is not an array of numbers: it is NoneType\ngive",
    ),
    "labels text": (
        {"labels": FEEDS["labels"].astype(str)},
        r"takes tensor\(int64\), but .*string",
    ),
    "objects": ({"x": FEEDS["x"].astype(object)}, "it holds objects, such as float\ngive"),
    "double": ({"x": FEEDS["x"].astype(float)}, r"takes tensor\(float\), .* given tensor\(double"),
    "rank": ({"x": FEEDS["x"][0]}, r"takes shape \(batch, 8\), but was given \(8\)"),
    "size": ({"x": FEEDS["x"][:, :7]}, r"but was given \(12, 7\): dimension 1 is 7"),
    "unknown": ({"z": FEEDS["x"]}, "no input 'z'; the model takes 'x', 'labels'"),
    "fewer": ({"labels": FEEDS["labels"][:5]}, "'batch' is 12 in input 'x' but 5 in 'labels'"),
    "one": ({"labels": FEEDS["labels"][:1]}, "'batch' is 12 in input 'x' but 1 in 'labels'"),
    "no class": (
        {"labels": FEEDS["labels"] + 9},
        "classes go from 0 to 3\nno parameter was changed",
    ),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_feeds_are_refused_and_change_nothing(wrong: str, accumulate: int) -> None:
    one, other = session(accumulate=accumulate), session(accumulate=accumulate)
    for each in (one, other):
        each.step(FEEDS)
    change, words = WRONG[wrong]
    for method in (*METHODS, *METHODS):  # the second time, some of them are bound
        with pytest.raises(FeedError, match=words):
            getattr(one, method)({**FEEDS, **change})
    for name in FEEDS:
        rest = {n: array for n, array in FEEDS.items() if n != name}
        for method in METHODS:
            with pytest.raises(FeedError, match=f"input {name!r} is missing"):
                getattr(one, method)(rest)
    assert one.checkpoint()[1] == other.checkpoint()[1]
    for each in (one, other):
        each.step(FEEDS)
    for name, tensor in other.checkpoint()[0].items():
        np.testing.assert_array_equal(one.checkpoint()[0][name], tensor, err_msg=name)


def test_index_out_of_range_is_refused_and_changes_nothing() -> None:
    op = onward.OpBuilder()
    table = op.initializer("table", np.ones((5, 4), np.float32))
    model = op.model(y=op.Gather(table, op.input("ids", "int64", ("n",))))
    one = TrainingSession(model, CrossEntropy(), SGD(lr=0.1))
    bad = {"ids": np.array([0, 9]), "labels": np.array([0, 1])}
    for method in METHODS:
        with pytest.raises(FeedError, match="holds the index 9 that is out of range: Gather refus"):
            getattr(one, method)(bad)
    assert one.steps == 0
    np.testing.assert_array_equal(one.parameters["table"], np.ones((5, 4)))
