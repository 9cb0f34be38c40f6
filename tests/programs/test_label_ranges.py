"""Ranges of labels: what is checked, and how a model's metadata has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import FeedError, InvalidModel, NodeFailed, ProviderError
from onward.programs.label_ranges import (
    LabelRange,
    check_labels,
    from_json,
    index_refusal,
    to_json,
)

PLAIN = LabelRange(name="labels", classes=3, ignored=None)
IGNORING = LabelRange(name="labels", classes=3, ignored=-100)


@pytest.mark.parametrize(
    ("labels", "known"),
    [([0, 1, 2], PLAIN), ([], PLAIN), ([[0, -100]], IGNORING), (1, PLAIN), ([-100], IGNORING)],
)
def test_classes_and_what_is_ignored_may_be_fed(labels: Any, known: LabelRange) -> None:
    check_labels(np.array(labels, np.int64), known)


@pytest.mark.parametrize(
    ("labels", "known", "message"),
    [
        ([0, 3], PLAIN, r"'labels' holds 3 at \[1\]: classes go from 0 to 2\nno parameter was"),
        ([[0, 0], [-1, 0]], PLAIN, r"holds -1 at \[1, 0\]"),
        ([-100, -1], IGNORING, r"holds -1 at \[1\]: .* 0 to 2 \(or -100, which is ignored\)"),
        (5, PLAIN, r"holds 5 at \[\]"),
    ],
)
def test_a_label_that_is_not_a_class_is_refused(
    labels: Any, known: LabelRange, message: str
) -> None:
    with pytest.raises(FeedError, match=message):
        check_labels(np.array(labels, np.int64), known)


@pytest.mark.parametrize("labels", [["a"], [None], [1j]])
def test_labels_that_are_not_numbers_are_left_to_the_check_of_types(labels: Any) -> None:
    check_labels(np.array(labels), PLAIN)


BOUNDS = "Status Message: indices element out of data bounds, idx=9 must be within the range"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"while running Gather node. {BOUNDS}",
            "the index 9 that is out of range: Gather refused",
        ),
        (f"while running If node. while running Gather node. {BOUNDS}", "range: Gather refused it"),
        ("index out of range in self", "an index that is out of range: Embedding refused it"),
    ],
)
def test_an_index_out_of_range_is_a_feed_error(text: str, words: str) -> None:
    refusal = index_refusal(NodeFailed(text, "Embedding"))
    assert refusal is not None and words in str(refusal)
    assert str(refusal).splitlines()[1].startswith("labels must be whole numbers from 0")


def test_other_failures_are_not_index_errors() -> None:
    assert index_refusal(NodeFailed("shapes do not fit", "Add")) is None
    assert index_refusal(ProviderError("the number of threads is out of range")) is None


def test_label_ranges_to_json_and_back() -> None:
    assert from_json(to_json([PLAIN, IGNORING])) == (PLAIN, IGNORING)


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "3",
        '["labels"]',
        '[{"name": "labels"}]',
        '[{"name": 1, "classes": 3, "ignored": null}]',
        '[{"name": "labels", "classes": 3, "ignored": "x"}]',
    ],
)
def test_invalid_json_of_ranges_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidModel, match=r"the model's ranges of labels cannot be read: .*\nmake"
    ):
        from_json(text)
