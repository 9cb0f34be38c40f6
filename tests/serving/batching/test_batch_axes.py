"""batch_axes: the first axis where it is free everywhere, or the axes of the settings."""

from __future__ import annotations

import pytest

from onward.errors import OptionError
from onward.serving.batching.batch_axes import find_batch_axes
from onward.serving.requests import TensorSpec


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "FP32", shape)


def test_the_first_axis_is_the_batch_axis() -> None:
    found = find_batch_axes([spec("a", -1, 3), spec("b", -1)], [spec("y", -1, 5)], {})
    assert found == {"a": 0, "b": 0, "y": 0}


def test_another_axis_is_given() -> None:
    inputs, outputs = [spec("a", 3, -1), spec("b", -1, 2)], [spec("y", 1, 4, -1)]
    found = find_batch_axes(inputs, outputs, {"a": 1, "y": -1})
    assert found == {"a": 1, "b": 0, "y": 2}


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([], [spec("y", -1)], "it has no inputs"),
        ([spec("x", 1, 3)], [spec("y", -1)], "axis 0 of input 'x' has the fixed size 1"),
        ([spec("x", -1)], [spec("y", 8)], "axis 0 of output 'y' has the fixed size 8"),
        ([spec("x", -1)], [spec("y")], "output 'y' has the shape []: no batch axis"),
        ([spec("x")], [spec("y", -1)], "input 'x' has the shape []: no batch axis"),
    ],
)
def test_a_model_without_batch_axis_says_why(
    inputs: list[TensorSpec], outputs: list[TensorSpec], reason: str
) -> None:
    assert find_batch_axes(inputs, outputs, {}) == reason


def test_an_axis_that_does_not_exist_is_named() -> None:
    found = find_batch_axes([spec("x", -1, 2)], [spec("y", -1)], {"x": 2})
    assert found == "input 'x' has the shape [-1, 2]: no axis 2"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OptionError, match="batch_axes names 'z', which is not an input or output"):
        find_batch_axes([spec("x", -1)], [spec("y", -1)], {"z": 0})


def test_a_fixed_size_is_accepted_if_all_batches_are_filled_up_to_it() -> None:
    inputs, outputs = [spec("x", 8, 2)], [spec("y", 8)]
    assert find_batch_axes(inputs, outputs, {}, (8,)) == {"x": 0, "y": 0}
    assert isinstance(find_batch_axes(inputs, outputs, {}, (4, 8)), str)


def test_an_output_of_unknown_rank_is_accepted_if_its_axis_is_given() -> None:
    assert find_batch_axes([spec("x", -1)], [spec("y")], {"y": 0}) == {"x": 0, "y": 0}
