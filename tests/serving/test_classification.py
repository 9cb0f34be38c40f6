"""The classification extension."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.classification import classify


def test_rows_are_classified_separately() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32)
    found = classify("y", scores, 2, ["cat", "dog"])
    assert found.tolist() == [
        [b"0.700000:1:dog", b"0.200000:2"],
        [b"0.500000:0:cat", b"0.250000:1:dog"],
    ]


def test_one_axis_is_one_row_and_more_classes_than_there_are_is_all() -> None:
    assert classify("y", np.array([3, 9]), 5, []).tolist() == [b"9:1", b"3:0"]


def test_further_axes_belong_to_the_row() -> None:
    scores = np.arange(8, dtype=ml_dtypes.bfloat16).reshape(2, 2, 2)
    assert classify("y", scores, 1, []).tolist() == [[b"3.000000:3"], [b"7.000000:3"]]


def test_texts_have_no_classes() -> None:
    with pytest.raises(RequestInvalid, match="output 'y' cannot be classified"):
        classify("y", np.array(["a"], object), 1, [])
