"""Arrays from what a user gives, or one line that says why it is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.errors import FeedError
from onward.programs.arrays import to_array, to_plain_array


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "it is NoneType"),
        ({}, "it is dict"),
        ([1.0, None], "it holds objects, such as float"),
        (np.array([["a", None]], object), "it holds objects, such as NoneType"),
    ],
)
@pytest.mark.parametrize("convert", [to_array, to_plain_array])
def test_arrays_of_objects_are_refused(convert: Any, value: Any, why: str) -> None:
    with pytest.raises(FeedError, match=rf"'x' is not an array of numbers: {why}\ngive a numpy"):
        convert(value, "'x'", FeedError)


@pytest.mark.parametrize("value", ["a", ["a", "b"], np.array(["a", "b"], object), [b"a"]])
def test_texts_are_arrays(value: Any) -> None:
    assert to_plain_array(value, "'x'", FeedError).dtype.kind in "OUS"


@pytest.mark.parametrize(
    "value", [np.ones((2, 2), ">f4"), np.ones((4, 2), np.float32)[::2], torch.ones(2, 2)]
)
def test_plain_arrays_are_contiguous_and_native(value: Any) -> None:
    array = to_plain_array(value, "'x'", FeedError)
    assert array.dtype == np.float32 and array.dtype.isnative and array.flags.c_contiguous
    np.testing.assert_array_equal(array, np.ones((2, 2)))


def test_a_plain_array_is_not_copied() -> None:
    array = np.ones(3, np.float32)
    assert to_plain_array(array, "'x'", FeedError) is array
