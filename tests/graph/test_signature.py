"""Feeds checked against what a model takes: one line that says what is wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onward.errors import FeedError
from onward.graph.signature import NodeArg, check_feeds, spell

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


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float"),
        (np.float64, "double"),
        (np.float16, "float16"),
        (np.bool_, "bool"),
        (np.str_, "string"),
        (object, "string"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e5m2, "float8e5m2"),
        (ml_dtypes.int4, "int4"),
    ],
)
def test_types_are_spelled_as_onnxruntime_does(dtype: Any, name: str) -> None:
    assert spell(np.dtype(dtype)) == f"tensor({name})"


def test_an_input_of_unknown_rank_takes_any_shape() -> None:
    any_rank = NodeArg("x", "tensor(float)", [], is_ranked=False)
    check_feeds({"x": np.ones((2, 3), np.float32)}, [any_rank], [])
