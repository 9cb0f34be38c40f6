"""Values as plain numbers, and conversions to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onward.providers.torch.python_numbers import (
    as_list,
    as_numbers,
    as_scalar,
    as_tensor,
    is_short,
    literal,
)


def constant(array: Any, dtype: type = np.int64) -> ir.Value:
    return ir.val("c", const_value=ir.tensor(np.asarray(array, dtype)))


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (constant(3), 3),
        (constant([1, 2]), [1, 2]),
        (constant([True, False], np.bool_), [True, False]),
        (constant([[1, 2]]), None),  # a matrix is a tensor
        (constant(np.zeros(2000)), None),  # too long to be written out
        (constant([1.5], np.float32), None),  # a float, where floats are not asked for
        (ir.val("x", ir.DataType.INT64, [2]), None),  # not a constant
    ],
)
def test_a_short_constant_of_integers_is_a_literal(value: ir.Value, numbers: Any) -> None:
    assert literal(value) == numbers


def test_a_constant_of_floats_is_a_literal_where_floats_are_asked_for() -> None:
    assert literal(constant([1.5], np.float16), floats=True) == [1.5]


@pytest.mark.parametrize(
    ("dtype", "shape", "operator", "short"),
    [
        (ir.DataType.INT64, [64], "Concat", True),
        (ir.DataType.INT64, [65], "Concat", False),
        (ir.DataType.INT64, ["n"], "Concat", True),
        (ir.DataType.INT64, ["n"], "Range", False),  # its inputs give the length
        (ir.DataType.INT64, [1, 2], "Concat", False),
        (ir.DataType.INT64, None, "Concat", False),
        (ir.DataType.FLOAT, [2], "Concat", False),
    ],
)
def test_few_integers_stay_on_the_host(
    dtype: ir.DataType, shape: list[Any] | None, operator: str, short: bool
) -> None:
    assert is_short(ir.val("y", dtype, shape), 1, operator) is short


@pytest.mark.parametrize("numbers", [3, [], [1, 2]])
def test_numbers_convert_to_a_tensor_and_back(numbers: Any) -> None:
    tensor = as_tensor(numbers, torch.int64, torch.device("cpu"))
    assert as_numbers(tensor) == numbers


def test_one_number_is_a_list_of_one_and_back() -> None:
    assert as_list(torch.tensor(3)) == [3] and as_scalar(torch.tensor([3])) == 3
    assert as_list([1, 2]) == [1, 2] and as_scalar(3) == 3
