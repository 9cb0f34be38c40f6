"""TorchStore: the tensors of a training run in the memory of a torch device.

The parameters of an update graph lie in one vector, and so do their gradients and slots: forward
and backward read named views, the update works on whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onward.programs.program import (
    AVERAGE,
    Array,
    Layout,
    Shape,
    UpdateLayout,
    gradient_name,
    slot_name,
)
from onward.programs.vector_offsets import Places, place, place_parameters
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.tensors import to_numpy, to_torch


@dataclass
class UpdateTensors:
    """The tensors of one update: vectors, and each parameter's place in them."""

    update: UpdateLayout
    places: Places
    parameters: Tensor
    slots: dict[str, Any]  # slot -> vector, or slot -> parameter -> tensor where it is not flat
    gradients: Tensor | None = None  # None: zeros that are not allocated yet

    def slot(self, slot: str, name: str) -> Tensor:
        """A slot of one parameter."""
        held = self.slots[slot]
        tensor: Tensor = held[name] if isinstance(held, dict) else view_in(held, self.places, name)
        return tensor

    def gradient_vector(self) -> Tensor:
        """The gradients that await an update."""
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.parameters)
        return self.gradients


@dataclass(frozen=True)
class Statistics:
    """Running statistics of one type, in one vector."""

    places: Places
    vector: Tensor


def view_in(vector: Tensor, places: Places, name: str) -> Tensor:
    """The view of a named tensor in a vector."""
    return vector[places.slices[name]].view(places.shapes[name])


class TorchStore:
    """Parameters, gradients, slots and running statistics as tensors on a device, by name."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.device = device
        self.updates = [
            _allocate(update, place_parameters(layout, update), device) for update in layout.updates
        ]
        self._tensors_by_parameter = {
            name: tensors for tensors in self.updates for name in tensors.update.parameters
        }
        self.parameters = {name: self._parameter(name) for name in layout.names}
        self.state = allocate_statistics(layout, device)
        self.statistics = {
            name: view_in(each.vector, each.places, name)
            for each in self.state
            for name in each.places.shapes
        }
        self.frozen = {n: to_torch(layout.initial[n], device) for n in layout.frozen}
        for name, view in {**self.parameters, **self.statistics}.items():
            view.copy_(to_torch(layout.initial[name], device))
        self._tensors: dict[str, Tensor] = {**self.parameters, **self.statistics}
        for tensors in self.updates:
            for slot, shapes in tensors.update.slots.items():
                for name in shapes:
                    held = self._tensors[slot_name(slot, name)] = tensors.slot(slot, name)
                    if slot == AVERAGE:
                        held.copy_(self.parameters[name])
        self._gradients = {gradient_name(name): name for name in layout.names}

    @property
    def owned(self) -> list[UpdateTensors]:
        """The tensors that updates work on."""
        return self.updates

    def bytes_held(self) -> dict[str, int]:
        """The bytes of the tensors, by kind."""
        found = {"parameters": 0, "gradients": 0, "slots": 0, "scratch": 0, "temporary": 0}
        for each in self.updates:
            vectors = {"parameters": each.parameters, "gradients": each.gradient_vector()}
            for kind, vector in vectors.items():
                found[kind] += vector.numel() * vector.element_size()
        for name, tensor in self._tensors.items():
            if name.startswith("optimizer/"):
                found["slots"] += tensor.numel() * tensor.element_size()
        statistics = sum(each.vector.numel() * each.vector.element_size() for each in self.state)
        return {**found, "statistics": statistics}

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The tensors that graphs of the program take as inputs."""
        return {**self.parameters, **self.statistics, **self.frozen}

    def read(self, name: str) -> Array:
        """A tensor by its name in a checkpoint, as a read-only numpy array.

        On a CPU the array shares the tensor's memory.
        """
        view: Array = to_numpy(self._find(name)).view()
        view.flags.writeable = False
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Write new contents to a tensor."""
        held = self._find(name)
        dtype = to_numpy(held[:0] if held.dim() else held).dtype
        array = np.asarray(tensor).astype(dtype, casting="same_kind", copy=False)
        held.copy_(to_torch(array, self.device))

    def _find(self, name: str) -> Tensor:
        if name not in self._gradients:
            return self._tensors[name]
        parameter = self._gradients[name]
        tensors = self._tensors_by_parameter[parameter]
        return view_in(tensors.gradient_vector(), tensors.places, parameter)

    def _parameter(self, name: str) -> Tensor:
        tensors = self._tensors_by_parameter[name]
        return view_in(tensors.parameters, tensors.places, name)

    def gradient_buffers(self) -> list[Tensor]:
        """The gradients that await an update, one vector for each update graph."""
        return [tensors.gradient_vector() for tensors in self.updates]

    def parameter_buffers(self) -> list[Tensor]:
        """The parameters, one vector for each update graph."""
        return [tensors.parameters for tensors in self.updates]

    def gradient_buffer(self, update: int) -> Tensor:
        return self.updates[update].gradient_vector()

    def clear_gradients(self) -> None:
        for tensors in self.updates:
            if tensors.gradients is not None:
                tensors.gradients.zero_()


def _allocate(update: UpdateLayout, places: Places, device: torch.device) -> UpdateTensors:
    vector = torch.zeros(places.size, dtype=getattr(torch, update.dtype), device=device)
    return UpdateTensors(update, places, vector, allocate_slots(update, places.size, device))


def allocate_slots(update: UpdateLayout, size: int, device: torch.device) -> dict[str, Any]:
    """The slots of an update with their first values: vectors of this size, or tensors by name."""

    def full(slot: str, shape: Any) -> Tensor:
        dtype = getattr(torch, update.slot_dtype(slot).name)
        return torch.full(shape, update.initial.get(slot, 0.0), dtype=dtype, device=device)

    slots: dict[str, Any] = {}
    for slot, wanted in update.slots.items():
        if update.flat:
            slots[slot] = full(slot, (size,))
        else:
            slots[slot] = {name: full(slot, shape) for name, shape in wanted.items()}
    return slots


def allocate_statistics(layout: Layout, device: torch.device) -> list[Statistics]:
    """Allocate the running statistics: a vector for each type."""
    shapes: dict[np.dtype[Any], dict[str, Shape]] = {}
    for name in layout.state:
        array = layout.initial[name]
        shapes.setdefault(array.dtype, {})[name] = array.shape
    found = []
    for dtype, named in shapes.items():
        places = place(named, dtype)
        found.append(Statistics(places, to_torch(np.zeros(places.size, dtype), device)))
    return found
