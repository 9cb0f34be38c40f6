"""Feeds of a training step as tensors on the device, and the random numbers that go with them."""

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
from onward.programs.feeds import FeedRules
from onward.programs.program import Array, Layout
from onward.providers.provider import Draw
from onward.providers.torch.tensors import to_numpy, to_torch
from onward.providers.torch.training.lowering import TrainingGraph
from onward.providers.torch.types import Tensor

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Feeds on the device."""

    tensors: dict[str, Tensor]
    shapes: dict[str, Array]  # arrays of the types and shapes of the feeds
    is_empty: bool  # whether it holds no sample
    as_numpy: bool  # whether results are to be read as numpy arrays


class TorchFeeds:
    """Reads the feeds of a graph: tensors are used where they lie, arrays copied to the device.

    Labels are checked where the host has them: to look at a GPU's would wait for it.
    """

    def __init__(self, graph: TrainingGraph, layout: Layout, device: torch.device) -> None:
        self.rules = FeedRules(graph.arguments, layout)
        self.names = [argument.name for argument in self.rules.arguments]
        self._device = device
        self._checked: Any = None  # types and shapes of the last feeds
        self._is_empty = False

    def read(self, feeds: Mapping[str, Any]) -> Batch:
        """The feeds as tensors, or what is wrong with them."""
        self.rules.check_mapping(feeds)
        given = {name: _tensor_or_array(name, value) for name, value in feeds.items()}
        shapes = {name: _stand_in(value) for name, value in given.items()}
        self._check(shapes)
        self.rules.check_labels(_on_host({name: given[name] for name in self.rules.labels}))
        tensors = {name: self._to_device(value) for name, value in given.items()}
        as_numpy = not any(isinstance(value, Tensor) for value in given.values())
        return Batch(tensors, shapes, self._is_empty, as_numpy)

    def _check(self, shapes: dict[str, Array]) -> None:
        signature = [(name, array.dtype, array.shape) for name, array in shapes.items()]
        if signature != self._checked:
            self.rules.check(shapes)
            self._is_empty = self.rules.is_empty(shapes)
            self._checked = signature

    def _to_device(self, value: Tensor | Array) -> Tensor:
        tensor: Tensor = to_torch(value, _HOST) if isinstance(value, np.ndarray) else value
        if tensor.device == self._device:
            return tensor
        if tensor.is_cpu and self._device.type == "cuda":
            tensor = tensor.pin_memory()  # a copy from other memory would wait for the GPU
        return tensor.to(self._device, non_blocking=True)


class Noise:
    """Uniform random numbers that are fed: a function of the seed, the step and the micro-batch."""

    def __init__(self, size: TrainingGraph, device: torch.device) -> None:
        self._graph, self._device = size, device
        self._by_shape = all(
            node.op_type in ("Shape", "Size")
            for value in size.model.graph.inputs
            for node, _ in value.uses()
        )
        self._sizes: dict[Any, int] = {}

    def draw(self, batch: Batch, draw: Draw) -> Tensor:
        """As many numbers as these feeds need, at this step."""
        generator = np.random.Generator(np.random.SFC64(list(draw)))
        numbers = torch.from_numpy(generator.random(self._size(batch), np.float32))
        if self._device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self._device, non_blocking=True)

    def _size(self, batch: Batch) -> int:
        """How many: counted once for every set of shapes, where these decide."""
        key = tuple((name, array.shape) for name, array in batch.shapes.items())
        if key not in self._sizes or not self._by_shape:
            [size] = self._graph.module(*(batch.tensors[name] for name in self._graph.inputs))
            self._sizes[key] = int(size)
        return self._sizes[key]


def _tensor_or_array(name: str, value: Any) -> Tensor | Array:
    """A feed as a tensor where it is one, of torch or of another library; else as an array."""
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


def _stand_in(value: Tensor | Array) -> Array:
    """An array of the feed's type and shape, for rules that look at nothing else."""
    if isinstance(value, np.ndarray):
        return value
    return np.broadcast_to(_element(value.dtype), tuple(value.shape))


@functools.cache
def _element(dtype: torch.dtype) -> Array:
    element: Array = to_numpy(torch.empty((), dtype=dtype))
    return element


def _on_host(given: Mapping[str, Tensor | Array]) -> dict[str, Array]:
    """The feeds that the host has, as arrays over their memory."""
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    return arrays | {name: to_numpy(value) for name, value in tensors.items() if value.is_cpu}
