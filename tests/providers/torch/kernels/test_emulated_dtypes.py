"""Unsigned integers and float8s through the decorators that emulate them."""

from __future__ import annotations

import pytest
import torch

from onward.providers.torch.kernels.emulated_dtypes import (
    by_bits,
    by_order,
    by_value,
    without_emulation,
)

UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


def _extremes(dtype: torch.dtype) -> torch.Tensor:
    top = torch.iinfo(dtype).max
    return torch.tensor([top, 0, 1, top // 2, top // 2 + 1, top - 1], dtype=dtype)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_sums_by_bits_wrap_as_unsigned_integers_do(dtype: torch.dtype) -> None:
    add = by_bits(torch.add)
    y = add(_extremes(dtype), torch.ones(6).to(dtype))
    top = torch.iinfo(dtype).max
    assert y.dtype == dtype
    assert y.tolist() == [0, 1, 2, top // 2 + 1, top // 2 + 2, top]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_the_order_of_the_largest_numbers_is_kept(dtype: torch.dtype) -> None:
    x = _extremes(dtype)
    sort = by_order(lambda x: tuple(torch.sort(x)))
    values, indices = sort(x)
    assert values.dtype == dtype
    assert indices.dtype == torch.int64
    assert values.tolist() == sorted(x.tolist())
    assert [x.tolist()[i] for i in indices] == sorted(x.tolist())


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_comparisons_return_bools(dtype: torch.dtype) -> None:
    x = _extremes(dtype)
    less = by_order(results=0)(torch.lt)
    assert less(x, x[:1]).tolist() == [n < x.tolist()[0] for n in x.tolist()]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32])
def test_by_value_sees_the_number_itself(dtype: torch.dtype) -> None:
    half = by_value(lambda x: torch.div(x, 2, rounding_mode="trunc"))
    x = _extremes(dtype)
    assert half(x).dtype == dtype
    assert half(x).tolist() == [n // 2 for n in x.tolist()]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2fnuz])
def test_float8s_are_moved_by_their_bits(dtype: torch.dtype) -> None:
    flip = by_bits(lambda x: x.flip(0))
    x = torch.tensor([1.0, -2.0, 0.5]).to(dtype)
    assert flip(x).dtype == dtype
    assert flip(x).float().tolist() == [0.5, -2.0, 1.0]


def test_all_outputs_and_sequences_are_converted_on_request() -> None:
    x = torch.tensor([1, 65535], dtype=torch.uint16)
    split = by_bits(results=None)(lambda xs: (xs, xs[0]))
    (first, second), third = split([x, x])
    assert first.dtype == second.dtype == third.dtype == torch.uint16
    assert third.tolist() == [1, 65535]


def test_other_types_pass_through_untouched() -> None:
    x = torch.ones(2)
    assert by_bits(lambda x: x)(x) is x
    assert by_order(lambda x, k: k)(x, 3) == 3


def test_known_types_skip_the_emulation() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x

    widened = by_order(kernel)
    assert without_emulation(widened, [torch.float32, torch.int64]) is kernel
    assert without_emulation(widened, [torch.float32, torch.uint16]) is widened
    assert without_emulation(widened, [None]) is widened
    assert without_emulation(kernel, [torch.uint16]) is kernel
