"""Random numbers: drawn from torch's generator, or from one of their own where a seed is given.

A node with a seed draws the same numbers at every run: its output is a function of its seed.
"""

from __future__ import annotations

import struct

import torch

from onward.graph.table import OpTable
from onward.providers.torch.types import Ints, Tensor, torch_dtype

kernel = OpTable()


def generator(seed: float | None, device: torch.device) -> torch.Generator | None:
    """A generator that starts from an ONNX seed; None, which is torch's own, without a seed."""
    if seed is None:
        return None
    # ONNX's seeds are floats: the bits tell 0.1 from 0.2
    bits = seed if isinstance(seed, int) else struct.unpack("<I", struct.pack("<f", seed))[0]
    return torch.Generator(device).manual_seed(bits)


def _normal(
    shape: Ints,
    dtype: torch.dtype,
    device: torch.device,
    mean: float,
    scale: float,
    seed: float | None,
) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device=device)
    return x.normal_(mean, scale, generator=generator(seed, device))


def _uniform(
    shape: Ints,
    dtype: torch.dtype,
    device: torch.device,
    low: float,
    high: float,
    seed: float | None,
) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device=device)
    return x.uniform_(low, high, generator=generator(seed, device))


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
    return _normal(shape, torch_dtype(dtype), device, mean, scale, seed)


@kernel("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float, scale: float, seed: float | None = None
) -> Tensor:
    return _normal(list(x.shape), _type(dtype, x), x.device, mean, scale, seed)


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
    return _uniform(shape, torch_dtype(dtype), device, low, high, seed)


@kernel("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, low: float, high: float, seed: float | None = None
) -> Tensor:
    return _uniform(list(x.shape), _type(dtype, x), x.device, low, high, seed)


@kernel("Bernoulli")
def bernoulli(p: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with probability p, else 0"""
    return torch.bernoulli(p, generator=generator(seed, p.device)).to(_type(dtype, p))


@kernel("Multinomial")
def multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: float | None = None) -> Tensor:
    """Class numbers, drawn with replacement with probability softmax(x)."""
    p = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    drawn = torch.multinomial(p, sample_size, True, generator=generator(seed, x.device))
    return drawn.to(torch_dtype(dtype))


def _type(dtype: int | None, x: Tensor) -> torch.dtype:
    return x.dtype if dtype is None else torch_dtype(dtype)
