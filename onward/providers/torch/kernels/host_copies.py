"""Copies of activations in host memory, for compiled code (training/compiled_offload.py).

    held = CopyToHost(x)                begins to copy x to pinned memory
    stored = AwaitHostCopy(held, x)     waits for it; x lives until here
    sent = CopyToDevice(held, stored, token)   begins to copy it back, once the token is computed
    y = AwaitDeviceCopy(held, sent)     x, once its copy has arrived

A compiler reuses memory by its own plan, which knows of one stream. So values that another stream
still reads or writes stay inputs of a later operator, which waits for that stream. Both operators
must get the same memory: a compiler that wants certain strides may hand each a copy of its own, and
write over the first while it is read. They take any strides, and check it.

The `number` of a copy names its buffers: a recorded CUDA graph needs them at the same address in
every step. They live as long as their `HostCopy`, which belongs to the lowered graphs. Copies are
contiguous, whatever the strides of x: a compiler may change those.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.copy_stream import copy_stream
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.private_domain import DOMAIN

COPY_TO_HOST, AWAIT_HOST_COPY = "CopyToHost", "AwaitHostCopy"
COPY_TO_DEVICE, AWAIT_DEVICE_COPY = "CopyToDevice", "AwaitDeviceCopy"

kernel = OpTable()


class HostCopy:
    """The host memory of one value, for each shape that it has had, and copies under way."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        _copies[self.number] = self
        self._buffers: dict[Any, Tensor] = {}
        self._read = 0  # the address of what is copied
        self._stored: torch.cuda.Event | None = None
        self._sent: tuple[Tensor, torch.cuda.Event | None] | None = None

    def store(self, x: Tensor) -> Tensor:
        """Begin to copy x to the host; returns the memory there."""
        key = (x.shape, x.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        held = self._buffers[key]
        self._read = x.data_ptr()
        if not x.is_cuda:
            return held.copy_(x)
        stream = copy_stream(x.device, "activations")
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            held.copy_(x, non_blocking=True)
            self._stored = stream.record_event()
        return held

    def await_stored(self, x: Tensor) -> None:
        """Let the device wait until the host has the value, which was copied from x."""
        if x.data_ptr() != self._read:
            raise RuntimeError(
                "the compiler freed an activation while it was copied to host memory: gradients "
                "would be wrong\ntrain without Memory(offload=True), and report this model"
            )
        if self._stored is not None:
            torch.cuda.current_stream().wait_event(self._stored)

    def send(self, held: Tensor, device: torch.device) -> None:
        """Begin to copy the value back."""
        if device.type != "cuda":
            self._sent = held.clone(), None
            return
        fetched = torch.empty(held.shape, dtype=held.dtype, device=device)
        stream = copy_stream(device, "activations")
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            fetched.copy_(held, non_blocking=True)
            self._sent = fetched, stream.record_event()

    def receive(self) -> Tensor:
        """The value on the device, which waits until it is there."""
        assert self._sent is not None
        (fetched, arrival), self._sent = self._sent, None
        if arrival is not None:
            torch.cuda.current_stream(fetched.device).wait_event(arrival)
        return fetched


_numbers = itertools.count()
_copies: WeakValueDictionary[int, HostCopy] = WeakValueDictionary()


# -- kernels ---------------------------------------------------------------------------------------


@kernel(COPY_TO_HOST, domain=DOMAIN)
def copy_to_host(x: Tensor, *, number: int) -> Tensor:
    """x, in host memory once `AwaitHostCopy` has waited"""
    held: Tensor = torch.ops.onward.begin_copy_to_host(x, number)
    return held


@kernel(AWAIT_HOST_COPY, domain=DOMAIN)
def await_host_copy(held: Tensor, x: Tensor, *, number: int) -> Tensor:
    """A token, once x is in host memory"""
    stored: Tensor = torch.ops.onward.await_host_copy(held, x, number)
    return stored


@kernel(COPY_TO_DEVICE, domain=DOMAIN)
def copy_to_device(
    held: Tensor, stored: Tensor, token: Tensor | None = None, *, number: int, device: torch.device
) -> Tensor:
    """A token, once the value is on its way to the device"""
    tokens = [stored] if token is None else [stored, token]
    sent: Tensor = torch.ops.onward.begin_copy_to_device(held, tokens, number, device)
    return sent


@kernel(AWAIT_DEVICE_COPY, domain=DOMAIN)
def await_device_copy(held: Tensor, sent: Tensor, *, number: int, device: torch.device) -> Tensor:
    """The value on the device"""
    found: Tensor = torch.ops.onward.await_device_copy(held, sent, number, device)
    return found


# -- torch's operators -----------------------------------------------------------------------------


_ANY_LAYOUT = (torch.Tag.flexible_layout,)  # else a compiler may copy what an operator reads


def _token() -> Tensor:
    return torch.empty(1, dtype=torch.uint8)


@torch.library.custom_op("onward::begin_copy_to_host", mutates_args=(), tags=_ANY_LAYOUT)
def _copy_to_host(x: Tensor, number: int) -> Tensor:
    return _copies[number].store(x)


@_copy_to_host.register_fake
def _(x: Tensor, number: int) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


@torch.library.custom_op("onward::await_host_copy", mutates_args=(), tags=_ANY_LAYOUT)
def _await_host_copy(held: Tensor, x: Tensor, number: int) -> Tensor:
    _copies[number].await_stored(x)
    return _token()


@_await_host_copy.register_fake
def _(held: Tensor, x: Tensor, number: int) -> Tensor:
    return _token()


@torch.library.custom_op("onward::begin_copy_to_device", mutates_args=(), tags=_ANY_LAYOUT)
def _copy_to_device(
    held: Tensor, tokens: list[Tensor], number: int, device: torch.device
) -> Tensor:
    _copies[number].send(held, device)
    return _token()


@_copy_to_device.register_fake
def _(held: Tensor, tokens: list[Tensor], number: int, device: torch.device) -> Tensor:
    return _token()


@torch.library.custom_op("onward::await_device_copy", mutates_args=(), tags=_ANY_LAYOUT)
def _await_device_copy(held: Tensor, sent: Tensor, number: int, device: torch.device) -> Tensor:
    return _copies[number].receive()


@_await_device_copy.register_fake
def _(held: Tensor, sent: Tensor, number: int, device: torch.device) -> Tensor:
    return torch.empty(held.shape, dtype=held.dtype, device=device)
