"""Random operators: drawn from torch's generator, or from a separate one if a seed is given.

A node with a seed draws the same numbers at every run. The functions of domain `onward` draw
numbers that depend only on (seed, step, micro-batch) and the call's number. They compute the same
bits as their bodies (passes/random_functions.py), in 32-bit integers on the device, which Inductor
fuses into the kernel that reads them; no generator's state is read or changed.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np
import torch
from torch._compile import _disable_dynamo

from onward.graph.operator_table import OpTable
from onward.passes.random_functions import (
    DOMAIN,
    DRAW_FACTORS,
    DROPOUT_MASK,
    FRACTION,
    MASKED_SCALE,
    MIX_32,
    MIX_64,
    NODE_FACTOR,
    RANDOM_KEY,
    STOCHASTIC_ROUND,
    UNIFORM,
)
from onward.providers.torch.dtypes import Float, Ints, Tensor, torch_dtype
from onward.providers.torch.kernels.materialized import materialized

kernel = OpTable()
function = functools.partial(kernel, domain=DOMAIN)
_P = ParamSpec("_P")


def not_compiled(call: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Leave a function out of compiled code; eager calls do not import the compiler for that."""
    excluded = _disable_dynamo(call)

    @functools.wraps(call)
    def run(*args: _P.args, **settings: _P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return excluded(*args, **settings)
        return call(*args, **settings)

    return run


def draw_seeded(
    draw: Callable[[torch.Generator | None], Tensor], seed: float | None, device: torch.device
) -> Tensor:
    """Call `draw` with the generator of a seed (None: torch's own)."""
    return draw(None) if seed is None else _draw_from_seed(draw, seed, device)


@not_compiled  # the compiler knows no generator but its own
def _draw_from_seed(
    draw: Callable[[torch.Generator | None], Tensor], seed: float, device: torch.device
) -> Tensor:
    # most of ONNX's seeds are floats: use their bits, so that 0.1 and 0.2 differ
    bits = seed if isinstance(seed, int) else struct.unpack("<I", struct.pack("<f", seed))[0]
    return draw(torch.Generator(device).manual_seed(bits))


@not_compiled
def reference_uniform(shape: Sequence[int], seed: int, device: torch.device) -> Tensor:
    """Numbers in 0..1 as ONNX's reference evaluator draws them: equal on every engine."""
    return torch.from_numpy(np.random.RandomState(seed).uniform(size=tuple(shape))).to(device)


@kernel("RandomNormal")
def random_normal(
    *,
    shape: Ints,
    dtype: int,
    mean: float,
    scale: float,
    seed: float | None = None,
    device: torch.device,
) -> Tensor:
    x = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
    return draw_seeded(lambda generator: x.normal_(mean, scale, generator=generator), seed, device)


@kernel("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float, scale: float, seed: float | None = None
) -> Tensor:
    y = torch.empty_like(x, dtype=_type(dtype, x))
    return draw_seeded(
        lambda generator: y.normal_(mean, scale, generator=generator), seed, x.device
    )


@kernel("RandomUniform")
def random_uniform(
    *,
    shape: Ints,
    dtype: int,
    low: float,
    high: float,
    seed: float | None = None,
    device: torch.device,
) -> Tensor:
    x = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
    return draw_seeded(lambda generator: x.uniform_(low, high, generator=generator), seed, device)


@kernel("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, low: float, high: float, seed: float | None = None
) -> Tensor:
    y = torch.empty_like(x, dtype=_type(dtype, x))
    return draw_seeded(lambda generator: y.uniform_(low, high, generator=generator), seed, x.device)


@kernel("Bernoulli")
def bernoulli(p: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with probability p, else 0"""
    y = draw_seeded(lambda generator: torch.bernoulli(p, generator=generator), seed, p.device)
    return y.to(_type(dtype, p))


@kernel("Multinomial")
def multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: float | None = None) -> Tensor:
    """Class numbers, drawn with replacement with probability softmax(x)."""
    p = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    y = draw_seeded(
        lambda generator: torch.multinomial(p, sample_size, True, generator=generator),
        seed,
        x.device,
    )
    return y.to(torch_dtype(dtype))


# -- functions of domain onward ------------------------------------------------------------------


@function(RANDOM_KEY)
def random_key(draw: Tensor) -> Tensor:
    """The halves of mix(a seed + b step + c micro)"""
    a, b, c = (_signed(factor, 64) for factor in DRAW_FACTORS)
    mixed = _mix(draw[0] * a + draw[1] * b + draw[2] * c, MIX_64, 64)
    return materialized(torch.stack([mixed, mixed >> 32]).to(torch.int32))


@function(UNIFORM)
def uniform(key: Tensor, shape: Ints, *, node: int, device: torch.device) -> Tensor:
    """u = mix(offset + i stride) / 2**32"""
    return numbers(key, shape, own_number(node), device)


def own_number(node: int) -> int:
    """The number of a call, spread over 32 bits with a sign."""
    return _signed(_mix_number(node * NODE_FACTOR), 32)


def numbers(key: Tensor, shape: Sequence[int], own: int, device: torch.device) -> Tensor:
    """Uniform numbers of the call with this number, which `own_number` gives."""
    h = _hashes(key, shape, own, device)
    return _shifted(h, 32 - FRACTION, 32).to(torch.float32).mul_(2.0**-FRACTION)


def _hashes(key: Tensor, shape: Sequence[int], own: int, device: torch.device) -> Tensor:
    """mix(offset + i stride), 32 bits for each element i"""
    offset, stride = key[0] + own, (key[1] ^ own) | 1
    index = torch.arange(math.prod(shape), device=device).to(torch.int32).reshape(shape)
    return _mix(index.mul_(stride).add_(offset), MIX_32, 32)


@function(DROPOUT_MASK)
def dropout_mask(
    key: Tensor, shape: Ints, *, node: int, ratio: float, device: torch.device
) -> Tensor:
    """u >= ratio"""
    return materialized(uniform(key, shape, node=node, device=device) >= ratio)


@function(MASKED_SCALE)
def masked_scale(x: Tensor, mask: Tensor, scale: Float) -> Tensor:
    """x * mask * scale, in one pass where torch has it"""
    y: Tensor = torch.ops.aten.native_dropout_backward(x, mask, scale)
    return y


@function(STOCHASTIC_ROUND)
def stochastic_round(x: Tensor, key: Tensor, *, node: int) -> Tensor:
    """The upper 16 bits of x's, after 16 random bits were added to the lower ones"""
    noise = _shifted(_hashes(key, x.shape, own_number(node), x.device), 16, 32)
    bits = (x.view(torch.int32) + noise) & -0x10000
    return torch.where(torch.isfinite(x), bits.view(torch.float32), x).to(torch.bfloat16)


def _mix(h: Tensor, steps: Any, bits: int) -> Tensor:
    """A finalizer: h ^= h >> shift, h *= factor, pair by pair; h may be written over."""
    for shift, factor in steps:
        h = h.bitwise_xor_(_shifted(h, shift, bits))
        if factor is not None:
            h = h.mul_(_signed(factor, bits))
    return h


def _mix_number(h: int) -> int:
    """The 32-bit finalizer of one Python number."""
    h &= 0xFFFFFFFF
    for shift, factor in MIX_32:
        h ^= h >> shift
        h = h * (1 if factor is None else factor) & 0xFFFFFFFF
    return h


def _shifted(h: Tensor, by: int, bits: int) -> Tensor:
    """h >> by with zeros from the left, whatever the sign."""
    return (h >> by).bitwise_and_((1 << (bits - by)) - 1)


def _signed(number: int, bits: int) -> int:
    """The signed integer that has the same bits."""
    return number - (1 << bits) if number >> (bits - 1) else number


def _type(dtype: int | None, x: Tensor) -> torch.dtype:
    return x.dtype if dtype is None else torch_dtype(dtype)
