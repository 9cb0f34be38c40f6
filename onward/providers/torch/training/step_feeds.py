"""Check the feeds of a training step and move them to the device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from onward.errors import FeedError
from onward.programs.arrays import to_plain_array
from onward.programs.feed_rules import FeedRules
from onward.programs.program import Array, Layout
from onward.providers.torch.copy_stream import copy_stream
from onward.providers.torch.derived_feeds import DerivedTensors
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.tensors import to_numpy, to_torch
from onward.providers.torch.training.lowering import TorchGraph

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """The feeds of one step, on the device."""

    tensors: dict[str, Tensor]
    shapes: dict[str, Array]  # arrays of the feeds' types and shapes; their contents do not count
    is_empty: bool  # whether it holds no sample
    as_numpy: bool  # whether results are returned as numpy arrays


class TorchFeeds:
    """Reads the feeds of a graph: tensors on the device are used in place, others copied to it.

    Labels on a GPU are not checked: reading them would wait for the GPU.
    """

    def __init__(self, graph: TorchGraph, layout: Layout, device: torch.device) -> None:
        self.rules = FeedRules(graph.arguments, layout)
        self._derived = DerivedTensors(layout, graph.inputs)
        self._device = device
        self._checked: Any = None  # types and shapes of the last feeds
        self._is_empty = False
        self._last: tuple[Any, dict[str, Array]] | None = None  # of feeds on a GPU: key, shapes

    def read(self, feeds: Mapping[str, Any]) -> Batch:
        """The feeds as tensors; raises a FeedError if they do not fit the graph."""
        key = self._key_on_gpu(feeds)
        if key is not None and self._last is not None and self._last[0] == key:
            tensors = dict(feeds)
            if self._derived.rows and not self._is_empty:
                tensors |= self._derived.compute(tensors)
            return Batch(tensors, self._last[1], self._is_empty, as_numpy=False)
        batch = self._read(feeds)
        self._last = None if key is None else (key, batch.shapes)
        return batch

    def _key_on_gpu(self, feeds: Mapping[str, Any]) -> Any:
        """Names, types and shapes of feeds that are all on this GPU; None for others.

        Feeds of the same types and shapes are not checked again: it costs more than a small step.
        """
        if self._device.type != "cuda" or type(feeds) is not dict:
            return None
        key = []
        for name, x in feeds.items():
            if type(x) is not Tensor or not x.is_cuda or x.requires_grad or x.is_sparse:
                return None
            key.append((name, x.dtype, x.shape, x.device))
        return key

    def _read(self, feeds: Mapping[str, Any]) -> Batch:
        self.rules.check_mapping(feeds)
        given = {name: _tensor_or_array(name, value) for name, value in feeds.items()}
        shapes = {name: _array_like(value) for name, value in given.items()}
        self._check(shapes)
        self.rules.check_labels(_on_host({name: given[name] for name in self.rules.labels}))
        as_numpy = not any(isinstance(value, Tensor) for value in given.values())
        if self._derived.rows and not self._is_empty:
            given |= self._derived.compute(given)
        tensors = {name: self._to_device(value) for name, value in given.items()}
        return Batch(tensors, shapes, self._is_empty, as_numpy)

    def _check(self, shapes: dict[str, Array]) -> None:
        signature = [(name, array.dtype, array.shape) for name, array in shapes.items()]
        if signature != self._checked:
            self.rules.check(shapes)
            self._is_empty = self.rules.is_empty(shapes)
            self._checked = signature

    def _to_device(self, value: Tensor | Array) -> Tensor:
        tensor: Tensor = to_torch(value, _HOST) if isinstance(value, np.ndarray) else value
        return to_device(tensor, self._device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; neither the host nor the GPU's computation waits for the copy."""
    if not tensor.is_cpu or device.type != "cuda":
        return tensor.to(device)
    stream, copies = torch.cuda.current_stream(device), copy_stream(device, "feeds")
    with torch.cuda.stream(copies):  # a copy from memory that is not pinned would wait
        copied = tensor.pin_memory().to(device, non_blocking=True)
    stream.wait_stream(copies)
    copied.record_stream(stream)
    return copied


def _tensor_or_array(name: str, value: Any) -> Tensor | Array:
    """A feed as a torch tensor if it is a tensor of some library; else as an array."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise FeedError(f"input {name!r} is a sparse tensor\ngive a dense one: x.to_dense()")
        return value.detach()
    if hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, np.generic)):
        try:
            tensor: Tensor = torch.utils.dlpack.from_dlpack(value)
        except Exception as error:  # each library raises its own
            why = str(error).partition("\n")[0]
            raise FeedError(
                f"input {name!r} cannot be read by DLPack: {why}\ngive a numpy array"
            ) from error
        return tensor
    return to_plain_array(value, f"input {name!r}", FeedError)


def _array_like(value: Tensor | Array) -> Array:
    """An array of the feed's type and shape, for checks that read nothing else."""
    if isinstance(value, np.ndarray):
        return value
    return np.broadcast_to(_element(value.dtype), tuple(value.shape))


@functools.cache
def _element(dtype: torch.dtype) -> Array:
    element: Array = to_numpy(torch.empty((), dtype=dtype))
    return element


def _on_host(given: Mapping[str, Tensor | Array]) -> dict[str, Array]:
    """The feeds in host memory, as arrays without a copy."""
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    return arrays | {name: to_numpy(value) for name, value in tensors.items() if value.is_cpu}
