"""TorchPartStore: the parts of a run's vectors that one process of many holds, in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from onward.programs.bucket_parts import Sharding
from onward.programs.program import AVERAGE, Array, Layout
from onward.providers.provider import OwnPart
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.tensors import to_numpy, to_torch
from onward.providers.torch.training.store import (
    UpdateTensors,
    allocate_slots,
    allocate_statistics,
    view_in,
)

_HOST = torch.device("cpu")


class TorchPartStore:
    """The own part of each update's vectors, and whole vectors for as long as they are held.

    Functions read parameters from the whole vectors of `updates`: tensors that stay, whose storage
    is freed while it is not held. Updates work on the parts, `owned`; with `offload`, these are in
    the memory of the CPU.
    """

    def __init__(self, layout: Layout, sharding: Sharding, device: torch.device) -> None:
        self.sharding, self.device = sharding, device
        self.update_device = _HOST if sharding.offload else device
        self.has_views = self.update_device == device  # whether parts are views of whole vectors
        self.updates = [self._whole(i) for i in range(len(sharding.buckets))]
        self.owned = [self._own(i) for i in range(len(sharding.buckets))]
        self._gathered, self._temporary, self._spares = _Peak(), _Peak(), _Peak()
        self._held_spares: dict[int, Tensor] = {}
        self.state = allocate_statistics(layout, device)
        self.statistics = {
            name: view_in(each.vector, each.places, name)
            for each in self.state
            for name in each.places.shapes
        }
        self.frozen = {n: to_torch(layout.initial[n], device) for n in layout.frozen}
        for name, view in self.statistics.items():
            view.copy_(to_torch(layout.initial[name], device))
        self._begin(layout)

    def _whole(self, i: int) -> UpdateTensors:
        parts = self.sharding.buckets[i]
        size = parts.places.size if self.sharding.has_whole_parameters else 0
        vector = torch.zeros(parts.places.size, dtype=self._dtype(i), device=self.device)
        vector.untyped_storage().resize_(size * vector.element_size())
        return UpdateTensors(parts.update, parts.places, vector, {})

    def _own(self, i: int) -> UpdateTensors:
        rank, parts = self.sharding.rank, self.sharding.buckets[i]
        start, stop = parts.ranges[rank]
        update, device = parts.own_update(rank), self.update_device
        slots = allocate_slots(update, stop - start, device)
        whole = self.updates[i].parameters
        if self.sharding.has_whole_parameters and self.has_views:
            vector = whole[start:stop]
        else:
            vector = torch.zeros(stop - start, dtype=whole.dtype, device=device)
        gradients = None if self._has_gradient_view else torch.zeros_like(vector)
        return UpdateTensors(update, parts.own_places(rank), vector, slots, gradients)

    def _begin(self, layout: Layout) -> None:
        """Write the first values of parameters, and of their averages."""
        rank = self.sharding.rank
        for i, parts in enumerate(self.sharding.buckets):
            own = self.owned[i]
            for name, where, piece in parts.pieces(rank):
                flat = np.asarray(layout.initial[name]).reshape(-1)[piece]
                own.parameters[where].copy_(to_torch(flat, own.parameters.device))
            if self.sharding.has_whole_parameters:
                for name in parts.places.slices:
                    view = view_in(self.updates[i].parameters, parts.places, name)
                    view.copy_(to_torch(layout.initial[name], self.device))
            held = own.slots.get(AVERAGE)
            if isinstance(held, dict):
                for name, tensor in held.items():
                    tensor.copy_(view_in(own.parameters, own.places, name))
            elif held is not None:
                held.copy_(own.parameters)

    @property
    def _has_gradient_view(self) -> bool:
        return self.sharding.has_whole_gradients and self.has_views

    def _dtype(self, i: int) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.sharding.buckets[i].update.dtype)
        return dtype

    # -- tensors by name -----------------------------------------------------------------------

    def read(self, name: str) -> Array:
        """A statistic as a read-only numpy array."""
        view: Array = to_numpy(self.statistics[name]).view()
        view.flags.writeable = False
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Write new contents to a statistic."""
        held = self.statistics[name]
        dtype = to_numpy(held[:0] if held.dim() else held).dtype
        array = np.asarray(tensor).astype(dtype, casting="same_kind", copy=False)
        held.copy_(to_torch(array, self.device))

    def parameter_buffers(self) -> list[Tensor]:
        """The own parts of the parameters, one for each update."""
        return [each.parameters for each in self.owned]

    def gradient_buffers(self) -> list[Tensor]:
        """The own parts of the gradients that await an update."""
        return [self.gradient_buffer(i) for i in range(len(self.owned))]

    def gradient_buffer(self, update: int) -> Tensor:
        if not self._has_gradient_view:
            return self.owned[update].gradient_vector()
        start, stop = self.sharding.buckets[update].ranges[self.sharding.rank]
        return self.updates[update].gradient_vector()[start:stop]

    def clear_gradients(self) -> None:
        for tensors in (*self.updates, *self.owned):
            if tensors.gradients is not None:
                tensors.gradients.zero_()

    # -- vectors -------------------------------------------------------------------------------

    def own_part(self, update: int) -> OwnPart:
        own = self.owned[update]
        return OwnPart(own.parameters, self.gradient_buffer(update), own.slots)

    def hold_parameters(self, update: int) -> Tensor:
        vector = self.updates[update].parameters
        storage, size = vector.untyped_storage(), vector.numel() * vector.element_size()
        if storage.nbytes() < size:
            storage.resize_(size)
            self._gathered.add(update, size)
        return vector

    def release_parameters(self, update: int) -> None:
        if not self.sharding.has_whole_parameters:
            self.updates[update].parameters.untyped_storage().resize_(0)
            self._gathered.remove(update)

    def hold_gradients(self, update: int) -> Tensor:
        vector = self.updates[update].gradient_vector()
        if not self.sharding.has_whole_gradients:
            self._temporary.add(update, vector.numel() * vector.element_size())
        return vector

    def release_gradients(self, update: int) -> None:
        if not self.sharding.has_whole_gradients:
            self.updates[update].gradients = None
            self._temporary.remove(update)

    def hold_spare(self, update: int) -> Tensor:
        if update not in self._held_spares:
            own = self.owned[update].parameters
            spare = torch.empty(own.shape, dtype=own.dtype, device=self.device)
            self._held_spares[update] = spare
            self._spares.add(update, spare.numel() * spare.element_size())
        return self._held_spares[update]

    def release_spare(self, update: int) -> None:
        self._held_spares.pop(update, None)
        self._spares.remove(update)

    def bytes_held(self) -> dict[str, int]:
        """The bytes of the tensors, by kind."""
        sharding = self.sharding
        whole = sum(parts.bytes for parts in sharding.buckets)
        own = sum(_bytes(tensors.parameters) for tensors in self.owned)
        slots = [held for tensors in self.owned for held in tensors.slots.values()]
        tensors = [
            t for held in slots for t in (held.values() if isinstance(held, dict) else [held])
        ]
        copy = 0 if self.has_views else own  # in the memory of the CPU, in addition
        return {
            "parameters": whole + copy if sharding.has_whole_parameters else own,
            "gradients": whole + copy if sharding.has_whole_gradients else own,
            "slots": sum(map(_bytes, tensors)),
            "scratch": 0,
            "statistics": sum(_bytes(each.vector) for each in self.state),
            "gathered": self._gathered.most,
            "temporary": self._temporary.most + self._spares.most,
        }


class _Peak:
    """The most bytes that were ever held at once."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self.most = 0

    def add(self, update: int, size: int) -> None:
        self._held[update] = size
        self.most = max(self.most, sum(self._held.values()))

    def remove(self, update: int) -> None:
        self._held.pop(update, None)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
