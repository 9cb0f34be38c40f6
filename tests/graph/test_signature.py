"""Feeds checked against a model's inputs, with errors of one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import FeedError
from onward.graph.signature import NodeArg, check_feeds, read_feeds

INPUTS = [
    NodeArg("x", "tensor(float)", ["batch", 3]),
    NodeArg("n", "tensor(int64)", ["batch"]),
    NodeArg("o", "optional(tensor(float))", []),
]
X, N = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)


def test_right_feeds_pass() -> None:
    check_feeds({"x": X, "n": N}, INPUTS, [])
    check_feeds({"x": X, "n": N, "w": X}, INPUTS, ["w"])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": X}, r"input 'n' is missing: tensor\(int64\) of shape \(batch\)"),
        ({"x": X, "n": N, "q": N}, "no input 'q'; the model takes 'x', 'n', 'o'"),
        (
            {"x": X.astype(np.float64), "n": N},
            r"'x' takes tensor\(float\), but was given tensor\(double\)",
        ),
        ({"x": X[0], "n": N}, r"'x' takes shape \(batch, 3\), but was given \(3\)"),
        ({"x": X[:, :2], "n": N}, r"given \(2, 2\): dimension 1 is 2"),
        ({"x": X, "n": N[:1]}, "dimension 'batch' is 2 in input 'x' but 1 in 'n'"),
    ],
)
def test_each_fault_is_named(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        check_feeds(feeds, INPUTS, [])


def test_an_input_of_unknown_rank_takes_any_shape() -> None:
    any_rank = NodeArg("x", "tensor(float)", [], is_ranked=False)
    check_feeds({"x": np.ones((2, 3), np.float32)}, [any_rank], [])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (
            None,
            r"feeds must be a dict of tensors by input, not None\ngive \{'x': ..., 'n': ..., 'o'",
        ),
        ([X, N], "feeds must be a dict of tensors by input, not a list"),
        (
            {"x": None, "n": N},
            r"input 'x' is None, but takes tensor\(float\) of shape \(batch, 3\)",
        ),
        ({"x": "text", "n": N}, r"'x' takes tensor\(float\), but was given a str"),
        ({"x": [[None]], "n": N}, r"'x' takes tensor\(float\), but was given None"),
        ({"x": [[1, 2], [3]], "n": N}, "but was given lists of different lengths"),
        ({"x": X, "n": [1.5]}, r"'n' takes tensor\(int64\), which cannot hold 1.5"),
        ({"x": X, "n": 2**70}, r"'n' takes tensor\(int64\), which cannot hold 11805"),
        ({"x": [X], "n": N}, r"'x' takes shape \(batch, 3\), but was given \(1, 2, 3\)"),
        ({"x": 3, "n": N}, r"'x' takes shape \(batch, 3\), but was given \(\)"),
        ({"y": X, "n": N}, "no input 'y'; the model takes 'x', 'n', 'o'"),
    ],
)
def test_a_feed_that_is_not_a_tensor_is_refused_in_one_line(feeds: Any, message: str) -> None:
    with pytest.raises(FeedError, match=message):
        read_feeds(feeds, INPUTS)


def test_lists_and_numbers_become_arrays_of_the_declared_type() -> None:
    ready = read_feeds({"x": [[1, 2, 3]], "n": [True], "o": None}, INPUTS)
    assert ready["x"].dtype == np.float32 and ready["n"].dtype == np.int64
    assert ready["o"] is None


def test_foreign_byte_order_is_converted() -> None:
    x = np.array([[1, 2, 3]], ">f4")
    ready = read_feeds({"x": x, "n": np.zeros(1, np.int64)}, INPUTS)
    assert ready["x"].dtype.isnative and ready["x"].tolist() == x.tolist()
