"""Numbers that the type of a feed cannot hold."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.number_range import cast_numbers
from onward.runner.data.number_scaling import Standardize
from onward.runner.plan.feed_source import FeedSource


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (1e39, "float32"),
        (-70_000.0, "float16"),
        (70_000, "float16"),
        (1e39, ml_dtypes.bfloat16),
        (5_000_000_000, "int32"),
        (3e9, "int32"),
        (-1, "uint8"),
        (1e19, "int64"),
    ],
)
def test_numbers_out_of_range_are_refused(number: Any, dtype: Any) -> None:
    wanted = np.dtype(dtype)
    numbers = np.array([[1, 2], [number, 3]])
    message = rf"row 7, column 'a': {number!r}.* does not fit {wanted}".replace("+", r"\+")
    with pytest.raises(DataError, match=message):
        cast_numbers(numbers, wanted, ["a"], np.array([4, 7]))


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_missing_and_infinite_numbers_stay(dtype: Any) -> None:
    found = cast_numbers(np.array([np.nan, np.inf, 1.5]), np.dtype(dtype), ["a"])
    assert np.array_equal(found.astype("f8"), [np.nan, np.inf, 1.5], equal_nan=True)


def test_feeds_and_scaled_columns_are_checked() -> None:
    source = FeedSource("x", ("a", "b"), {}, "float32", (None, 2))
    columns = {"a": np.array([1.0, 2.0]), "b": np.array([1.0, 1e300])}
    with pytest.raises(DataError, match=r"row 9, columns 'a', 'b': 1e\+300 does not fit float32"):
        source.make(columns, np.array([8, 9]))
    with pytest.raises(DataError, match=r"row 1, column 'b': .* does not fit float32"):
        Standardize("b", (0.0,), (1.0,)).apply(columns["b"])
    tokens = FeedSource("ids", ("a",), {}, "int32", (None,))
    with pytest.raises(DataError, match="row 0, column 'a': 4294967297 does not fit int32"):
        tokens.make({"a": np.array([2**32 + 1])})
