"""Random feeds, and the names of dynamic dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import FeedError, OptionError
from onward.graph.random_feeds import (
    check_sizes,
    dynamic_names,
    input_shapes,
    names_of_size,
    random_feeds,
)
from onward.graph.signature import NodeArg

X = NodeArg("x", "tensor(float)", ["batch", 3, None])


def test_a_dynamic_dimension_has_its_name_and_its_place() -> None:
    assert names_of_size("x", 0, "batch") == ["x:0", "batch"]
    assert names_of_size("x", 2, None) == ["x:2"]
    assert names_of_size("x", 1, 3) == []
    assert dynamic_names([("x", X.shape), ("y", None)]) == {"x:0", "batch", "x:2"}


def test_sizes_by_place_override_sizes_by_name() -> None:
    assert random_feeds([X])["x"].shape == (1, 3, 1)
    feed = random_feeds([X], {"batch": 2, "x:2": 5})["x"]
    assert feed.shape == (2, 3, 5) and feed.dtype == np.float32
    assert random_feeds([X], {"batch": 2, "x:0": 4})["x"].shape == (4, 3, 1)


@pytest.mark.parametrize(
    ("known", "law"),
    [
        (["batch", "x:2"], r"no dynamic dimension 'bath'\ndid you mean 'batch'\?"),
        (["x:2", "x:1"], r"no dynamic dimension 'bath'\nthe model has 'x:1', 'x:2'"),
        ([], r"no dynamic dimension 'bath'\nthe model has none: every size is fixed"),
    ],
)
def test_a_size_of_an_unknown_dimension_is_refused(known: list[str], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        check_sizes(["bath"], known)


INPUTS = [("x", "tensor(float)", ["batch", 3, None]), ("s", "tensor(int64)", [])]


def test_sizes_fill_dynamic_dimensions_by_name_or_by_place() -> None:
    assert input_shapes(INPUTS, {"batch": 2, "x:2": 5}) == {"x": (2, 3, 5), "s": ()}


def test_a_dynamic_dimension_without_a_size_is_named() -> None:
    with pytest.raises(OptionError, match=r"'batch' of input 'x', 'x:2' are unknown.*\ngive each"):
        input_shapes(INPUTS, {})


def test_input_shapes_refuse_a_size_of_an_unknown_dimension() -> None:
    with pytest.raises(OptionError, match="no dynamic dimension 'bath'\ndid you mean 'batch'"):
        input_shapes(INPUTS, {"bath": 2})


def test_input_shapes_refuse_an_unknown_feed() -> None:
    with pytest.raises(FeedError, match="no input 'z'; the model takes 's', 'x'"):
        input_shapes(INPUTS, {"z": np.zeros(3)})


def test_a_sequence_needs_feeds() -> None:
    with pytest.raises(OptionError, match=r"is a seq.*\nplan with feeds"):
        input_shapes([("q", "seq(tensor(float))", [])], {})
