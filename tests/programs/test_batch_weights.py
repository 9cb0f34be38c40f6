"""How much the parts of a batch count, so that the loss of the whole batch is theirs together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward import OpBuilder, optimizers
from onward.losses import CTC, KL, MSE, CrossEntropy, Graph, Total
from onward.programs.batch_weights import BatchWeight
from onward.programs.build import build_program

X = np.zeros((3, 4), np.float32)


def weight_of(loss: Any) -> BatchWeight:
    """The weight in a model of an input of a fixed size, one of free size, and two outputs."""
    op = OpBuilder(18)
    factor = op.input("factor", "float32", (1,))
    x = op.Mul(op.input("x", "float32", ("batch", 4)), factor)
    y = op.LogSoftmax(op.MatMul(x, op.initializer("w", np.ones((4, 2), np.float32))))
    steps = op.Unsqueeze(y, [0])
    return build_program(op.model(y=y, steps=steps), loss, optimizers.SGD()).layout.weight


def mean(op: Any, values: Any) -> Any:
    return op.ReduceMean(values["y"], keepdims=0)


@pytest.mark.parametrize(
    ("loss", "feeds", "weight"),
    [
        (MSE(), {"target": np.zeros((3, 2))}, 6.0),
        (MSE(reduction="sum"), {"target": np.zeros((3, 2))}, 1.0),
        (KL(reduction="batchmean"), {"target": np.zeros((3, 2))}, 3.0),
        (CTC(output="steps", target_lengths=None), {"labels": np.zeros((3, 5), int)}, 3.0),
        (CrossEntropy(ignore_index=1), {"labels": np.array([0, 1, 0])}, 2.0),
        (Graph(mean), {"factor": np.ones(1), "x": X}, 3.0),
        (Graph(mean), {"x": X, "factor": np.ones(1)}, 3.0),
    ],
    ids=["mean", "sum", "mean of rows", "ctc", "labels", "own loss", "own loss, x first"],
)
def test_parts_count_as_their_loss_is_taken(
    loss: Any, feeds: dict[str, Any], weight: float
) -> None:
    found = weight_of(loss)
    assert found.of(feeds) == weight
    assert not found.is_empty(feeds)
    assert found.is_empty({name: feed[:0] for name, feed in feeds.items() if len(feed) == 3})


def test_sums_are_added_and_means_divided() -> None:
    assert BatchWeight(is_sum=True).total(3.0) == 1.0
    assert BatchWeight(is_sum=True).total(0.0) == 0.0
    assert BatchWeight().total(3.0) == 3.0


def test_losses_that_count_labels_differently_have_approximate_weights() -> None:
    one = CrossEntropy(output="y", target="a", ignore_index=0)
    other = CrossEntropy(output="y", target="b")
    assert weight_of(Total({"one": one, "other": other})).is_approximate
    assert not weight_of(Total({"one": other, "other": MSE(output="y")})).is_approximate


def weight_of_computed(target: str, loss: Any) -> BatchWeight:
    """The weight in a model that computes its targets from its inputs."""
    op = OpBuilder(18)
    x, labels = op.input("x", "float32", ("batch", 4)), op.input("ids", "int32", ("batch", 1))
    y = op.MatMul(x, op.initializer("w", np.ones((4, 4), np.float32)))
    made = {
        "computed": op.Mul(x, np.float32(2)),
        "moved": op.Reshape(op.Cast(labels, to=7), [-1]),
        "shifted": op.Add(op.Reshape(op.Cast(labels, to=7), [-1]), np.int64(0)),
    }
    model = op.model(y=y, target=made[target])
    return build_program(model, loss, optimizers.SGD()).layout.weight


IDS = np.array([[0], [-1], [2]], np.int32)


@pytest.mark.parametrize(
    ("target", "loss", "weight", "approximate"),
    [
        ("computed", MSE(output="y"), 3.0, False),
        ("computed", MSE(output="y", reduction="sum"), 1.0, False),
        ("computed", KL(output="y", reduction="batchmean"), 3.0, False),
        ("moved", CrossEntropy(output="y", target="target", ignore_index=-1), 2.0, False),
        ("shifted", CrossEntropy(output="y", target="target"), 3.0, False),
        ("shifted", CrossEntropy(output="y", target="target", ignore_index=-1), 3.0, True),
    ],
)
def test_targets_that_the_model_computes_count_by_its_feeds(
    target: str, loss: Any, weight: float, approximate: bool
) -> None:
    found = weight_of_computed(target, loss)
    assert found.of({"x": X, "ids": IDS}) == weight
    assert found.is_empty({"x": X[:0], "ids": IDS[:0]})
    assert found.is_approximate == found.hides_labels == approximate
