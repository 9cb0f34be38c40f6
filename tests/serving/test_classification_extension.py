"""classification: the best classes of a row, as texts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onward.errors import RequestInvalid
from onward.serving.classification_extension import classify


def test_the_best_classes_of_each_row_come_first_with_their_labels() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32)
    assert classify(scores, 2, ["ant", "bee"]).tolist() == [
        [b"0.700000:1:bee", b"0.200000:2"],
        [b"0.500000:0:ant", b"0.250000:1:bee"],
    ]


def test_a_single_row_keeps_its_rank() -> None:
    assert classify(np.array([1, 9, 3], np.uint8), 5).tolist() == [b"9:1", b"3:2", b"1:0"]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.int64, np.uint64])
def test_all_types_of_numbers_are_ordered(dtype: type) -> None:
    texts = classify(np.array([[3, 1, 2]]).astype(dtype), 3)[0]
    assert [text.split(b":")[1] for text in texts] == [b"0", b"2", b"1"]


def test_ties_keep_their_order_and_nan_comes_last() -> None:
    texts = classify(np.array([np.nan, 1.0, 1.0]), 3)
    assert [text.split(b":")[1] for text in texts] == [b"1", b"2", b"0"]


def test_an_empty_batch_has_no_rows() -> None:
    assert classify(np.zeros((0, 3), np.float32), 2).shape == (0, 2)


def test_texts_have_no_classes() -> None:
    with pytest.raises(RequestInvalid, match="unsupported type 'BYTES'"):
        classify(np.array([b"a"], object), 1)
