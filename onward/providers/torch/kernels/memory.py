"""Calls that say when and where a value is kept in memory (passes/memory_functions.py).

On CUDA, values move to pinned host memory and back on a stream of their own, while the device
computes; on a CPU they stay where they are. Compiled code for a GPU has operators of its own
(host_copies.py). Operators of the private domain `onward.torch` keep compiled code in order
(training/compiled_order.py), and from computing scalars more than once (training/held_scalars.py).
"""

from __future__ import annotations

import functools

import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.passes.memory_functions import (
    AWAIT_FETCH,
    AWAIT_OFFLOAD,
    BLOCK,
    DEQUANTIZE,
    FETCH,
    LARGEST,
    OFFLOAD,
    QUANTIZE,
    RUN_AFTER,
)
from onward.providers.torch.copy_stream import copy_stream
from onward.providers.torch.dtypes import Ints, Tensor, Unused
from onward.providers.torch.private_domain import DOMAIN

CHANGE_AFTER, COPY_AFTER, HOLD = "ChangeAfter", "CopyAfter", "Hold"

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)


@composite(RUN_AFTER)
def run_after(x: Tensor, token: Unused = None) -> Tensor:
    """x: torch runs nodes in the graph's order, and merges none"""
    return x


# -- order in compiled code ------------------------------------------------------------------------


@kernel(CHANGE_AFTER, domain=DOMAIN)
def change_after(x: Tensor, *tokens: Tensor) -> Tensor:
    """x; for a compiler, changed once the tokens are computed"""
    if _overlaps(x):  # elements that share memory cannot be changed
        return copy_after(x, *tokens)
    torch.ops.onward.change_after(x, list(tokens))
    return x


@kernel(COPY_AFTER, domain=DOMAIN)
def copy_after(x: Tensor, *tokens: Tensor) -> Tensor:
    """A copy of x, once the tokens are computed"""
    copied: Tensor = torch.ops.onward.copy_after(x, list(tokens))
    return copied


@kernel(HOLD, domain=DOMAIN)
def hold(*values: Tensor) -> tuple[Tensor, ...]:
    """The values; for a compiler, results that it cannot compute again where they are read"""
    return tuple(map(computed_once, values))


def computed_once(value: Tensor) -> Tensor:
    """A value; compiled for a CPU, what loops over larger values read, and do not repeat.

    Inductor writes a value to memory that is viewed by strides.
    """
    if not is_compiled_for_cpu(value):
        return value
    return value.as_strided(value.shape, value.stride())


def is_compiled_for_cpu(value: Tensor) -> bool:
    """Whether a compiler writes what is computed of a value, for a CPU."""
    return torch.compiler.is_compiling() and value.device.type == "cpu"


def _overlaps(x: Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(x.shape, x.stride()))


_ANY_LAYOUT = (torch.Tag.flexible_layout,)  # else a compiler may copy tokens for their strides


@torch.library.custom_op("onward::change_after", mutates_args=("x",), tags=_ANY_LAYOUT)
def _change_after(x: Tensor, tokens: list[Tensor]) -> None:
    """Do nothing. A compiler takes it for a change of x that reads the tokens."""


@torch.library.custom_op("onward::copy_after", mutates_args=())
def _copy_after(x: Tensor, tokens: list[Tensor]) -> Tensor:
    return x.clone()


@_change_after.register_fake
def _(x: Tensor, tokens: list[Tensor]) -> None: ...


@_copy_after.register_fake
def _(x: Tensor, tokens: list[Tensor]) -> Tensor:
    return torch.empty_like(x)


# -- host memory -----------------------------------------------------------------------------------


@composite(OFFLOAD)
def offload_to_host(x: Tensor) -> Tensor:
    """x in pinned host memory"""
    if not x.is_cuda or torch.compiler.is_compiling():
        return x
    stream = copy_stream(x.device, "activations")
    held = torch.empty_like(x, device="cpu", pin_memory=True)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        held.copy_(x, non_blocking=True)
        held.arrival = stream.record_event()  # type: ignore[attr-defined]
    return held


@composite(AWAIT_OFFLOAD)
def await_offload(held: Tensor, x: Tensor) -> Tensor:
    """held, after the device has waited for its copy: the memory of x may be used again"""
    arrival = getattr(held, "arrival", None) if not torch.compiler.is_compiling() else None
    if arrival is not None:
        torch.cuda.current_stream(x.device).wait_event(arrival)
    return held


@composite(FETCH)
def fetch_from_host(x: Tensor, token: Unused = None, *, device: torch.device) -> Tensor:
    """x on the device, once `await_fetch` has waited for it"""
    if x.is_cuda or device.type != "cuda" or torch.compiler.is_compiling():
        return x
    stream = copy_stream(device, "activations")
    with torch.cuda.stream(stream):
        fetched = torch.empty_like(x, device=device)
        fetched.copy_(x, non_blocking=True)
        fetched.arrival = stream.record_event()  # type: ignore[attr-defined]
    return fetched


@composite(AWAIT_FETCH)
def await_fetch(x: Tensor) -> Tensor:
    """x, after its copy has arrived"""
    arrival = getattr(x, "arrival", None) if not torch.compiler.is_compiling() else None
    if arrival is not None:
        stream = torch.cuda.current_stream(x.device)
        stream.wait_event(arrival)
        x.record_stream(stream)
    return x


# -- 8 bits ----------------------------------------------------------------------------------------


@composite(QUANTIZE)
def quantize_activation(x: Tensor) -> tuple[Tensor, Tensor]:
    """q = round(x / scale), scale = max |x| / 127 of each block; the last one is filled with 0"""
    flat = x.reshape(-1)
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).reshape(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True) / LARGEST
    divisor = torch.where(scale == 0, 1, scale)
    q = torch.round(blocks / divisor).to(torch.int8)
    if torch.compiler.is_compiling():  # else computed where it is first read: x lives until then
        torch.ops.onward.change_after(q, [])
    return q, scale


@composite(DEQUANTIZE)
def dequantize_activation(q: Tensor, scale: Tensor, shape: Ints) -> Tensor:
    """y = q scale, in a shape"""
    count = 1
    for size in shape:
        count *= size
    return (q.to(scale.dtype) * scale).reshape(-1)[:count].reshape(shape)
