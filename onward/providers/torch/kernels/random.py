"""Random numbers: drawn from torch's generator, or from one of their own where a seed is given.

A node with a seed draws the same numbers at every run: its output is a function of its seed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch._compile import _disable_dynamo

from onward.graph.table import OpTable
from onward.providers.torch.types import Ints, Tensor, torch_dtype

kernel = OpTable()


def drawn(
    draw: Callable[[torch.Generator | None], Tensor], seed: float | None, device: torch.device
) -> Tensor:
    """What `draw` makes of the generator that belongs to a seed (None: torch's own)."""
    return draw(None) if seed is None else _drawn_from_seed(draw, seed, device)


@_disable_dynamo  # it knows no generator but its own
def _drawn_from_seed(
    draw: Callable[[torch.Generator | None], Tensor], seed: float, device: torch.device
) -> Tensor:
    # most of ONNX's seeds are floats: their bits tell 0.1 from 0.2
    bits = seed if isinstance(seed, int) else struct.unpack("<I", struct.pack("<f", seed))[0]
    return draw(torch.Generator(device).manual_seed(bits))


@_disable_dynamo  # (torch.compiler.disable would import the whole compiler now)
def reference_uniform(shape: Sequence[int], seed: int, device: torch.device) -> Tensor:
    """Numbers in 0..1 as ONNX's reference evaluator draws them: a seed's are the same anywhere."""
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
    return drawn(lambda generator: x.normal_(mean, scale, generator=generator), seed, device)


@kernel("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float, scale: float, seed: float | None = None
) -> Tensor:
    y = torch.empty_like(x, dtype=_type(dtype, x))
    return drawn(lambda generator: y.normal_(mean, scale, generator=generator), seed, x.device)


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
    return drawn(lambda generator: x.uniform_(low, high, generator=generator), seed, device)


@kernel("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, low: float, high: float, seed: float | None = None
) -> Tensor:
    y = torch.empty_like(x, dtype=_type(dtype, x))
    return drawn(lambda generator: y.uniform_(low, high, generator=generator), seed, x.device)


@kernel("Bernoulli")
def bernoulli(p: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with probability p, else 0"""
    y = drawn(lambda generator: torch.bernoulli(p, generator=generator), seed, p.device)
    return y.to(_type(dtype, p))


@kernel("Multinomial")
def multinomial(x: Tensor, *, dtype: int, sample_size: int, seed: float | None = None) -> Tensor:
    """Class numbers, drawn with replacement with probability softmax(x)."""
    p = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    y = drawn(
        lambda generator: torch.multinomial(p, sample_size, True, generator=generator),
        seed,
        x.device,
    )
    return y.to(torch_dtype(dtype))


def _type(dtype: int | None, x: Tensor) -> torch.dtype:
    return x.dtype if dtype is None else torch_dtype(dtype)
