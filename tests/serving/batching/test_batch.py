"""batch: joining and splitting along any axis, with padding, masks and fixed sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import ServingError
from onward.serving.batching.batch import (
    BatchLayout,
    MaskInput,
    PaddedInput,
    fixed_size,
    join_feeds,
    split_outputs,
)

INT64 = np.dtype(np.int64)


def rows(start: int, count: int, length: int = 2) -> Any:
    return np.arange(start, start + count * length, dtype=np.float32).reshape(count, length)


def test_a_lone_request_is_passed_on_without_a_copy() -> None:
    layout = BatchLayout({"x": 0, "y": 0})
    feeds = {"x": rows(0, 3)}
    assert join_feeds(layout, [feeds], [3]) is feeds
    outputs = {"y": rows(0, 3)}
    assert split_outputs(layout, outputs, [feeds], [3])[0]["y"] is outputs["y"]


def test_requests_are_joined_and_split() -> None:
    layout = BatchLayout({"x": 0, "y": 0})
    requests = [{"x": rows(0, 1)}, {"x": rows(10, 2)}, {"x": rows(20, 1)}]
    joined = join_feeds(layout, requests, [1, 2, 1])
    assert joined["x"][:, 0].tolist() == [0, 10, 12, 20]
    answers = split_outputs(layout, {"y": joined["x"]}, requests, [1, 2, 1])
    assert [answer["y"][:, 0].tolist() for answer in answers] == [[0], [10, 12], [20]]
    assert answers[1]["y"].base is not None  # a view


def test_the_batch_axis_may_be_any() -> None:
    layout = BatchLayout({"x": 1, "y": 2})
    requests = [{"x": rows(0, 1).T}, {"x": rows(10, 2).T}]
    joined = join_feeds(layout, requests, [1, 2])
    assert joined["x"].shape == (2, 3)
    answers = split_outputs(layout, {"y": joined["x"][None]}, requests, [1, 2])
    assert [answer["y"].shape for answer in answers] == [(1, 2, 1), (1, 2, 2)]
    np.testing.assert_array_equal(answers[1]["y"][0], requests[1]["x"])


def test_a_batch_is_filled_up_with_its_last_row() -> None:
    layout = BatchLayout({"x": 0, "ready": 0, "y": 0}, (4, 8), zero_filled=frozenset({"ready"}))
    requests = [
        {"x": rows(0, 1), "ready": np.ones((1, 1))},
        {"x": rows(10, 2), "ready": np.ones((2, 1))},
    ]
    joined = join_feeds(layout, requests, [1, 2])
    assert joined["x"][:, 0].tolist() == [0, 10, 12, 12]
    assert joined["ready"][:, 0].tolist() == [1, 1, 1, 0]
    answers = split_outputs(layout, {"y": joined["x"]}, requests, [1, 2])
    assert [len(answer["y"]) for answer in answers] == [1, 2]
    alone = join_feeds(layout, requests[:1], [1])
    assert len(alone["x"]) == 4
    assert len(split_outputs(layout, {"y": alone["x"]}, requests[:1], [1])[0]["y"]) == 1


def test_a_request_without_rows_is_not_filled_up() -> None:
    layout = BatchLayout({"x": 0, "y": 0}, (4,))
    feeds = {"x": rows(0, 0)}
    assert join_feeds(layout, [feeds], [0])["x"].shape == (0, 2)
    assert split_outputs(layout, {"y": feeds["x"]}, [feeds], [0])[0]["y"].shape == (0, 2)


PADDED = BatchLayout(
    {"x": 0, "mask": 0, "y": 0, "pooled": 0},
    padded={"x": PaddedInput(1, -1.0), "mask": PaddedInput(1)},
    cuts={"y": (1, "x")},
    masks={"mask": MaskInput("x", INT64, 2)},
)


def test_lengths_are_padded_with_mask_and_cut_back() -> None:
    requests = [{"x": rows(0, 1, 2)}, {"x": rows(10, 2, 4)}, {"x": rows(20, 1, 3)}]
    for feeds in requests:
        PADDED.fill_masks(feeds)
    joined = join_feeds(PADDED, requests, [1, 2, 1])
    assert joined["x"][0].tolist() == [0, 1, -1, -1]
    assert joined["x"][3].tolist() == [20, 21, 22, -1]
    assert joined["mask"].tolist() == [[1, 1, 0, 0], [1] * 4, [1] * 4, [1, 1, 1, 0]]
    assert joined["mask"].dtype == np.int64
    outputs = {"y": joined["x"], "pooled": joined["x"].sum(1, keepdims=True)}
    answers = split_outputs(PADDED, outputs, requests, [1, 2, 1])
    for feeds, answer in zip(requests, answers):
        np.testing.assert_array_equal(answer["y"], feeds["x"])
        assert answer["pooled"].shape == (len(feeds["x"]), 1)


def test_a_mask_that_the_client_gives_is_kept() -> None:
    feeds = {"x": rows(0, 1, 3), "mask": np.array([[1, 0, 1]])}
    PADDED.fill_masks(feeds)
    assert feeds["mask"].tolist() == [[1, 0, 1]]


def test_lengths_are_padded_up_to_fixed_sizes() -> None:
    layout = BatchLayout(
        {"x": 0, "y": 0}, padded={"x": PaddedInput(1, 0, (4, 8))}, cuts={"y": (1, "x")}
    )
    feeds = {"x": rows(0, 2, 5)}
    joined = join_feeds(layout, [feeds], [2])
    assert joined["x"].shape == (2, 8)
    answer = split_outputs(layout, {"y": joined["x"]}, [feeds], [2])[0]
    np.testing.assert_array_equal(answer["y"], feeds["x"])


def test_texts_are_padded() -> None:
    layout = BatchLayout({"x": 0}, padded={"x": PaddedInput(1, "")})
    requests = [{"x": np.array([["a"]], object)}, {"x": np.array([["b", "c"]], object)}]
    assert join_feeds(layout, requests, [1, 1])["x"].tolist() == [["a", ""], ["b", "c"]]


def test_lengths_and_rows_are_filled_up_together() -> None:
    layout = BatchLayout({"x": 1}, (4,), {"x": PaddedInput(0)})
    requests = [{"x": rows(0, 3, 1)}, {"x": rows(10, 1, 2)}]  # (length, batch)
    joined = join_feeds(layout, requests, [1, 2])
    assert joined["x"].tolist() == [[0, 10, 11, 11], [1, 0, 0, 0], [2, 0, 0, 0]]


def test_outputs_with_other_rows_are_refused() -> None:
    requests = [{"x": rows(0, 1)}, {"x": rows(0, 1)}]
    with pytest.raises(ServingError, match="axis 0 is not its batch axis"):
        split_outputs(BatchLayout({"x": 0, "y": 0}), {"y": rows(0, 3)}, requests, [1, 1])


def test_fixed_size_is_the_next_one() -> None:
    assert [fixed_size(size, (2, 4)) for size in (1, 2, 3, 9)] == [2, 2, 4, 9]
    assert fixed_size(3, ()) == 3


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=5),
    st.sampled_from([(), (4, 8, 16)]),
    st.sampled_from([(), (2, 4)]),
    st.booleans(),
)
def test_what_is_joined_is_split_into_the_same(
    shapes: list[tuple[int, int]],
    fixed: tuple[int, ...],
    lengths: tuple[int, ...],
    is_first: bool,
) -> None:
    axis = 0 if is_first else 1
    layout = BatchLayout(
        {"x": axis}, fixed, {"x": PaddedInput(1 - axis, 9, lengths)}, {"x": (1 - axis, "x")}
    )
    requests = []
    for number, (count, length) in enumerate(shapes):
        array = np.full((count, length), number) + np.arange(length) / 8
        requests.append({"x": array if is_first else array.T})
    counts = [count for count, _ in shapes]
    answers = split_outputs(layout, join_feeds(layout, requests, counts), requests, counts)
    for feeds, answer in zip(requests, answers):
        np.testing.assert_array_equal(feeds["x"], answer["x"])
