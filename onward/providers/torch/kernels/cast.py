"""Cast, CastLike and BitCast, with rounding to types that torch lacks."""

from __future__ import annotations

from typing import NamedTuple

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Tensor, torch_dtype

kernel = OpTable()

FLOAT8E4M3FN, FLOAT8E5M2, FLOAT4E2M1, FLOAT8E8M0 = 17, 19, 23, 24  # ONNX's numbers
FLOAT8 = (17, 18, 19, 20)


class SmallFloat(NamedTuple):
    """A float narrower than a byte, without infinities: its values are held in float32."""

    mantissa: int  # explicit bits
    exponent: int  # of the smallest normal number
    largest: float


class SmallInteger(NamedTuple):
    """An integer narrower than a byte: its values are held in (u)int8."""

    lowest: int
    highest: int


SMALL_FLOATS = {
    23: SmallFloat(mantissa=1, exponent=0, largest=6.0),
    27: SmallFloat(mantissa=3, exponent=0, largest=7.5),
    28: SmallFloat(mantissa=2, exponent=-2, largest=28.0),
}
SMALL_INTEGERS = {
    21: SmallInteger(0, 15),
    22: SmallInteger(-8, 7),
    25: SmallInteger(0, 3),
    26: SmallInteger(-2, 1),
}


@kernel("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return convert(x, to, saturate=bool(saturate), round_mode=round_mode)


@kernel("CastLike")
def cast_like(
    x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up", output_type: int
) -> Tensor:
    return convert(x, output_type, saturate=bool(saturate), round_mode=round_mode)


def convert(x: Tensor, to: int, *, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """`x` in the ONNX type `to`, rounded to the nearest, ties to even."""
    if to in SMALL_INTEGERS:
        return _wrapped(x, SMALL_INTEGERS[to]).to(torch_dtype(to))
    if to in SMALL_FLOATS:
        return rounded(x.double() if x.dtype == torch.float64 else x.float(), SMALL_FLOATS[to])
    if to in FLOAT8:
        return _float8(x, to, saturate)
    if to == FLOAT8E8M0:
        return _power_of_two(x, saturate, round_mode)
    return x.to(torch_dtype(to))


def _wrapped(x: Tensor, small: SmallInteger) -> Tensor:
    """The low bits of an integer, read with or without a sign."""
    bits = small.highest - small.lowest
    integer = x.to(torch.int32) if x.is_floating_point() else x.to(torch.int64)
    return ((integer - small.lowest) & bits) + small.lowest


def rounded(x: Tensor, small: SmallFloat) -> Tensor:
    """The nearest value of a small float, ties to even; saturates at the largest."""
    exponent = torch.frexp(x).exponent.sub(1).clamp(min=small.exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - small.mantissa)
    return (torch.round(x / step) * step).clamp(-small.largest, small.largest).float()


def _float8(x: Tensor, to: int, saturate: bool) -> Tensor:
    dtype = torch_dtype(to)
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if saturate:
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest).to(dtype)
    # torch saturates on some versions and devices: write the overflow explicitly
    if to == FLOAT8E4M3FN:  # 464 is halfway past the largest number, 448
        return torch.where(x.abs() > 464, torch.nan, x).to(dtype)
    if to == FLOAT8E5M2:  # 61440 is halfway past 57344
        infinity = torch.where(x < 0, 0xFC, 0x7C).to(torch.uint8)
        return torch.where(x.abs() >= 61440, infinity, x.to(dtype).view(torch.uint8)).view(dtype)
    return x.to(dtype)


def _power_of_two(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """|x| as float8e8m0, a bare exponent: 2^(code - 127), code 255 being NaN."""
    bits = x.float().view(torch.int32)
    code, fraction = (bits >> 23) & 255, bits & 0x7FFFFF
    # 2^-127 is a denormal number of float32
    fraction = torch.where(code == 0, (2 * fraction - 0x800000).clamp(min=0), fraction)
    least = {"up": 1, "nearest": 0x400000, "down": 0x800000}[round_mode]
    y = code + (fraction >= least)
    too_small = (bits & 0x7FFFFFFF) < 0x400000
    y = y.clamp(max=254) if saturate else torch.where(too_small, 255, y)
    y = torch.where(torch.isnan(x.float()), 255, y)
    return y.to(torch.uint8).view(torch.float8_e8m0fnu)


@kernel("BitCast")
def bit_cast(x: Tensor, *, to: int, input_type: int) -> Tensor:
    """The same bits, read as another type of the same width."""
    if input_type == FLOAT4E2M1 and to in SMALL_INTEGERS:
        return _wrapped(_float4_code(x), SMALL_INTEGERS[to]).to(torch_dtype(to))
    if input_type in SMALL_INTEGERS and to == FLOAT4E2M1:
        return _float4_value(x)
    if to in SMALL_INTEGERS:
        return _wrapped(x, SMALL_INTEGERS[to]).to(torch_dtype(to))
    return x.view(torch_dtype(to))


def _float4_code(x: Tensor) -> Tensor:
    """0, .5, 1, 1.5, 2, 3, 4, 6 -> 0 ... 7, and 8 more for the sign."""
    size = x.abs()
    code = torch.where(size < 2, 2 * size, torch.where(size < 4, size + 2, size / 2 + 4))
    return code.to(torch.int32) + 8 * torch.signbit(x)


def _float4_value(code: Tensor) -> Tensor:
    size = (code & 7).float()
    size = torch.where(size < 4, size / 2, torch.where(size < 6, size - 2, 2 * size - 8))
    return torch.where((code & 8) != 0, -size, size)
