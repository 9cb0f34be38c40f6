"""Empty batches: they have no loss and train nothing, in any way of training."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import FeedError, OptionError
from onward.losses import MSE, CrossEntropy
from onward.optimizers import SGD, AdamW
from onward.programs.empty_batches import empty_results, is_empty
from onward.providers.ort.bound_session import Argument
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

EMPTY = {"x": np.zeros((0, 8), np.float32), "labels": np.zeros(0, np.int64)}


def argument(name: str, *shape: int | str | None, type: str = "float") -> Argument:
    return Argument(name, f"tensor({type})", shape)


def session(**options: Any) -> TrainingSession:
    one = TrainingSession(mlp(dropout=0.2), CrossEntropy(), AdamW(lr=0.1), options)
    for feeds in batches(options.get("accumulate", 1)):
        one.step(feeds)
    return one


def same(one: TrainingSession, other: TrainingSession) -> None:
    (tensors, properties), (others, theirs) = one.checkpoint(), other.checkpoint()
    assert properties["training"] == theirs["training"]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], err_msg=name)


@pytest.mark.parametrize(
    ("shapes", "inputs", "expected"),
    [
        ({"x": (0, 4), "y": (0,)}, [argument("x", "n", 4), argument("y", "n")], True),
        ({"x": (2, 4), "y": (2,)}, [argument("x", "n", 4), argument("y", "n")], False),
        ({"x": (2, 0), "y": (2, 0)}, [argument("x", "n", "t"), argument("y", "n", "t")], True),
        ({"x": (2, 3), "past": (2, 0)}, [argument("x", "n", 3), argument("past", "n", "t")], False),
        ({"x": (0, 4), "s": ()}, [argument("x", None, 4), argument("s")], True),
        ({"x": (0, 4), "w": (3,)}, [argument("x", "n", 4), argument("w", 3)], True),
        ({"x": (0, 4)}, [argument("x")], True),  # of a rank that is not known
        ({"x": (0, 4)}, [argument("x", 0, 4)], False),  # it is so by law
        ({}, [], False),
    ],
)
def test_a_batch_is_empty_when_no_feed_of_free_size_holds_an_element(
    shapes: Any, inputs: Any, expected: bool
) -> None:
    assert is_empty(shapes, inputs) is expected


def test_results_are_nan_and_tensors_of_the_declared_shapes() -> None:
    outputs = [
        argument("loss"),
        argument("y", "n", 3, "other", type="float16"),
        argument("count", type="int64"),
    ]
    loss, y, count = empty_results(outputs, {"x": (0, 4)}, [argument("x", "n", 4)])
    assert np.isnan(loss) and loss.dtype == np.float32 and loss.shape == ()
    assert y.shape == (0, 3, 0) and y.dtype == np.float16
    assert count == 0 and count.dtype == np.int64


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_empty_step_changes_nothing_and_is_not_counted(accumulate: int, caplog: Any) -> None:
    one, other = session(accumulate=accumulate), session(accumulate=accumulate)
    with caplog.at_level(logging.WARNING, "onward"):
        found = one.step(EMPTY)
    assert caplog.messages == ["step 1: the batch is empty, it is left out"]
    assert np.isnan(found["loss"]) and found["logits"].shape == (0, 4)
    assert one.steps == 1 and one.skipped_steps == 0
    same(one, other)
    for feeds in batches(2, seed=5):
        one.step(EMPTY)  # among micro-batches, too
        expected = other.step(feeds)["loss"]
        assert one.step(feeds)["loss"] == expected
    same(one, other)


def test_an_empty_micro_batch_changes_nothing() -> None:
    one, other = session(), session()
    assert np.isnan(one.run_forward(EMPTY)["loss"])
    one.run_backward()
    assert one.update_weights() is False
    same(one, other)
    for each in (one, other):
        each.run_forward(batches(1)[0])
        each.run_backward()
        if each is one:
            one.run_forward(EMPTY)
            one.run_backward()
        assert each.update_weights() is True
    same(one, other)
    with pytest.raises(OptionError, match="there are no gradients to update with"):
        one.update_weights()


def test_an_empty_batch_has_no_loss_in_evaluation() -> None:
    one = session()
    found = one.evaluate(EMPTY)
    assert np.isnan(found["loss"]) and found["logits"].shape == (0, 4)
    assert one.predict({"x": EMPTY["x"]})["logits"].shape == (0, 4)


def test_batch_statistics_stay() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3, 2))
    parts = [op.initializer(n, np.ones(3, np.float32)) for n in ("scale", "shift", "mean", "var")]
    model = op.model(y=op.BatchNormalization(x, *parts))
    one = TrainingSession(model, MSE(), SGD(lr=0.1))
    empty = np.zeros((0, 3, 2), np.float32)
    assert np.isnan(one.step({"x": empty, "target": empty})["loss"])
    assert one.steps == 0
    for name, tensor in {**one.statistics, **one.parameters}.items():
        np.testing.assert_array_equal(tensor, np.ones(3, np.float32), err_msg=name)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"x": np.zeros((0, 9), np.float32)}, "dimension 1 is 9"),
        ({"x": np.zeros((0, 8), np.float64)}, r"takes tensor\(float\), but was given tensor\(do"),
        ({"labels": np.zeros((0, 1), np.int64)}, r"takes shape \(batch\), but was given \(0, 1\)"),
        ({"labels": np.zeros(2, np.int64)}, "dimension 'batch' is 0 in input 'x' but 2 in 'labels"),
    ],
)
def test_a_wrong_batch_without_samples_is_refused(wrong: Any, words: str) -> None:
    one, other = session(), session()
    for call in (one.step, one.run_forward, one.evaluate):
        with pytest.raises(FeedError, match=words):
            call({**EMPTY, **wrong})
    same(one, other)


def test_a_batch_with_one_empty_feed_is_not_empty() -> None:
    op = onward.OpBuilder()
    x, more = op.input("x", "float32", ("n", 4)), op.input("more", "float32", ("n", "k"))
    w = op.initializer("w", np.ones((4, 2), np.float32))
    y = op.Add(op.MatMul(x, w), op.ReduceSum(more, [1]))
    one = TrainingSession(op.model(y=y), MSE(), SGD(lr=0.1))
    feeds = {"x": np.ones((3, 4)), "more": np.ones((3, 0)), "target": np.ones((3, 2))}
    loss = one.step({name: array.astype(np.float32) for name, array in feeds.items()})["loss"]
    assert loss == 9.0 and one.steps == 1
