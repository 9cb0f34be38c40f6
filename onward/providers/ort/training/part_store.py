"""NumpyPartStore: the parts of a run's vectors that one process of many holds, as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.programs.bucket_parts import Sharding
from onward.programs.program import AVERAGE, Array, Layout
from onward.programs.vector_offsets import Places
from onward.providers.ort.training.store import (
    UpdateMemory,
    allocate_vectors,
    bytes_of_updates,
    fill_slots,
)
from onward.providers.ort.training.vector_pool import VectorPool, aligned_zeros
from onward.providers.provider import OwnPart


class NumpyPartStore:
    """The own part of each update's vectors, and whole vectors for as long as they are held.

    `updates` has the memory of the update graphs: the own parts. Whole parameters are held all the
    time unless they are sharded (ZeRO 3), and so are whole gradients (ZeRO 2 and 3).
    """

    def __init__(self, layout: Layout, sharding: Sharding) -> None:
        self.sharding = sharding
        self.gathered, self.temporary = VectorPool(), VectorPool()  # parameters, gradients
        self._parameters: dict[int, Array] = {}  # whole vectors that are held
        self._gradients: dict[int, Array] = {}
        self._spares: dict[int, Array] = {}  # of the size of parts
        self.updates = [self._allocate(i) for i in range(len(sharding.buckets))]
        self.statistics = {name: np.array(layout.initial[name]) for name in layout.state}
        self.frozen = {name: layout.initial[name] for name in layout.frozen}
        for memory, parts in zip(self.updates, sharding.buckets):
            for name, where, piece in parts.pieces(sharding.rank):
                memory.parameters[where] = layout.initial[name].reshape(-1)[piece]
        for i, vector in self._parameters.items():
            for name, view in self._views(i, vector).items():
                np.copyto(view, layout.initial[name])
        for memory in self.updates:
            _begin_average(memory)

    def _allocate(self, i: int) -> UpdateMemory:
        """Allocate an update's parts that are not views of whole vectors.

        Not in adjacent rows: these need rows for intermediate results in addition.
        """
        sharding, parts = self.sharding, self.sharding.buckets[i]
        start, stop = parts.ranges[sharding.rank]
        update, dtype = parts.own_update(sharding.rank), np.dtype(parts.update.dtype)
        whole = {}
        if sharding.has_whole_parameters:
            whole["parameters"] = self._parameters[i] = aligned_zeros(parts.places.size, dtype)
        if sharding.has_whole_gradients:
            whole["gradients"] = self._gradients[i] = aligned_zeros(parts.places.size, dtype)
        given = {name: vector[start:stop] for name, vector in whole.items()}
        vectors, matrices = allocate_vectors(update, stop - start, dtype, (), given)
        parameters, gradients = vectors.pop("parameters"), vectors.pop("gradients")
        slots = fill_slots(update, vectors)
        places = parts.own_places(sharding.rank)
        return UpdateMemory(update, places, parameters, gradients, slots, vectors, matrices)

    # -- tensors by name -----------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, Array]:
        """The tensors that graphs can be bound to once: parameters only if they are whole."""
        views = [self._views(i, vector) for i, vector in sorted(self._parameters.items())]
        whole = views if self.sharding.has_whole_parameters else []
        return {
            **{n: v for each in whole for n, v in each.items()},
            **self.statistics,
            **self.frozen,
        }

    def read(self, name: str) -> Array:
        """A read-only view of a statistic."""
        view = self.statistics[name].view()
        view.flags.writeable = False
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Replace the contents of a statistic."""
        np.copyto(self.statistics[name], tensor, casting="same_kind")

    def parameter_buffers(self) -> list[Array]:
        """The own parts of the parameters, one for each update."""
        return [memory.parameters for memory in self.updates]

    def gradient_buffers(self) -> list[Array]:
        """The own parts of the accumulated gradients, one for each update."""
        return [memory.gradients for memory in self.updates]

    def gradient_buffer(self, update: int) -> Array:
        return self.updates[update].gradients

    def clear_gradients(self) -> None:
        for vector in (*self.gradient_buffers(), *self._gradients.values()):
            vector[...] = 0

    # -- vectors -------------------------------------------------------------------------------

    def own_part(self, update: int) -> OwnPart:
        memory = self.updates[update]
        return OwnPart(memory.parameters, memory.gradients, memory.slots)

    def places(self, update: int) -> Places:
        """Where the parameters of an update lie in its whole vectors."""
        return self.sharding.buckets[update].places

    def hold_parameters(self, update: int) -> Array:
        if update not in self._parameters:
            self._parameters[update] = self._take(self.gathered, update)
        return self._parameters[update]

    def release_parameters(self, update: int) -> None:
        if not self.sharding.has_whole_parameters and update in self._parameters:
            self.gathered.give_back(self._parameters.pop(update))

    def hold_gradients(self, update: int) -> Array:
        if update not in self._gradients:
            vector = self._gradients[update] = self._take(self.temporary, update)
            for gap in self.sharding.buckets[update].places.gaps():
                vector[gap] = 0
        return self._gradients[update]

    def release_gradients(self, update: int) -> None:
        if not self.sharding.has_whole_gradients and update in self._gradients:
            self.temporary.give_back(self._gradients.pop(update))

    def hold_spare(self, update: int) -> Array:
        own = self.updates[update].gradients
        if update not in self._spares:
            self._spares[update] = self.temporary.take(own.size, own.dtype)
        return self._spares[update]

    def release_spare(self, update: int) -> None:
        if update in self._spares:
            self.temporary.give_back(self._spares.pop(update))

    def bytes_held(self) -> dict[str, int]:
        """The bytes of the arrays, by kind."""
        found = bytes_of_updates(self.updates)
        if self.sharding.has_whole_parameters:
            found["parameters"] = sum(each.nbytes for each in self._parameters.values())
        if self.sharding.has_whole_gradients:
            found["gradients"] = sum(each.nbytes for each in self._gradients.values())
        return {
            **found,
            "statistics": sum(each.nbytes for each in self.statistics.values()),
            "gathered": self.gathered.bytes,
            "temporary": self.temporary.bytes,
        }

    def _take(self, pool: VectorPool, update: int) -> Array:
        parts = self.sharding.buckets[update]
        return pool.take(parts.places.size, np.dtype(parts.update.dtype))

    def _views(self, update: int, vector: Array) -> dict[str, Array]:
        places = self.places(update)
        return {n: vector[s].reshape(places.shapes[n]) for n, s in places.slices.items()}


def _begin_average(memory: UpdateMemory) -> None:
    """Averaged parameters begin as the parameters."""
    held = memory.slots.get(AVERAGE)
    if isinstance(held, dict):
        for name, tensor in held.items():
            np.copyto(tensor, memory.view(memory.parameters, name))
    elif held is not None:
        np.copyto(held, memory.parameters)
