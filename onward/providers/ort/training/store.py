"""NumpyStore: the tensors of a training run as numpy arrays, to which graphs are bound.

The parameters of an update graph are views of one vector, their gradients and slots views of others
with the same layout: forward and backward use the named views, the update uses the vectors, and
nothing is copied between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.optimizers.vector_pair_names import Blocks, pairs_of
from onward.programs.program import (
    AVERAGE,
    Array,
    Layout,
    UpdateLayout,
    gradient_name,
    slot_name,
)
from onward.programs.vector_offsets import Places, place_parameters
from onward.providers.ort.training.vector_pool import VectorPool, aligned_zeros


@dataclass(frozen=True)
class UpdateMemory:
    """The tensors of one update graph: vectors, and views of them for each parameter."""

    update: UpdateLayout
    places: Places
    parameters: Array
    gradients: Array
    slots: dict[str, Any]  # slot -> vector, or slot -> parameter -> tensor where it is not flat
    scratch: dict[str, Array]  # temporary vectors of an update
    matrices: dict[str, Array]  # pairs of adjacent vectors, as two rows: `x|y`

    def view(self, vector: Array, name: str) -> Array:
        """The view of a vector for one parameter."""
        return vector[self.places.slices[name]].reshape(self.places.shapes[name])

    def slot(self, slot: str, name: str) -> Array:
        """A slot of one parameter."""
        held = self.slots[slot]
        return held[name] if isinstance(held, dict) else self.view(held, name)


class NumpyStore:
    """Parameters, gradients, slots and running statistics as arrays, by name."""

    def __init__(self, layout: Layout, blocks: Sequence[Blocks] | None = None) -> None:
        blocks = [()] * len(layout.updates) if blocks is None else blocks
        self.temporary = VectorPool()  # for gradients of one update
        self.updates = [
            _allocate(update, place_parameters(layout, update), rows)
            for update, rows in zip(layout.updates, blocks)
        ]
        homes = {name: memory for memory in self.updates for name in memory.update.parameters}
        names = layout.names
        self.parameters = {n: homes[n].view(homes[n].parameters, n) for n in names}
        self.gradients = {n: homes[n].view(homes[n].gradients, n) for n in names}
        self.statistics = {name: np.array(layout.initial[name]) for name in layout.state}
        self.frozen = {name: layout.initial[name] for name in layout.frozen}
        for name, view in self.parameters.items():
            np.copyto(view, layout.initial[name])
        self._tensors: dict[str, Array] = {**self.parameters, **self.statistics}
        for memory in self.updates:
            for slot, shapes in memory.update.slots.items():
                for name in shapes:
                    tensor = self._tensors[slot_name(slot, name)] = memory.slot(slot, name)
                    if slot == AVERAGE:
                        np.copyto(tensor, self.parameters[name])
        self._tensors |= {gradient_name(name): g for name, g in self.gradients.items()}

    @property
    def inputs(self) -> dict[str, Array]:
        """The tensors that graphs of the program take as inputs."""
        return {**self.parameters, **self.statistics, **self.frozen}

    def read(self, name: str) -> Array:
        """A read-only view of a tensor, by its name in a checkpoint."""
        view = self._tensors[name].view()
        view.flags.writeable = False
        return view

    def write(self, name: str, tensor: Any) -> None:
        """Replace the contents of a tensor."""
        np.copyto(self._tensors[name], tensor, casting="same_kind")

    def gradient_buffers(self) -> list[Array]:
        """The accumulated gradients, one vector for each update graph."""
        return [memory.gradients for memory in self.updates]

    def parameter_buffers(self) -> list[Array]:
        """The parameters, one vector for each update graph."""
        return [memory.parameters for memory in self.updates]

    def gradient_buffer(self, update: int) -> Array:
        return self.updates[update].gradients

    def places(self, update: int) -> Places:
        """Where the parameters of an update lie in its vectors."""
        return self.updates[update].places

    def hold_gradients(self, update: int) -> Array:
        """The vector that the segment of an update writes its gradients to."""
        return self.updates[update].gradients

    def bytes_held(self) -> dict[str, int]:
        """The bytes of the arrays, by kind."""
        return {**bytes_of_updates(self.updates), "temporary": self.temporary.bytes} | {
            "statistics": sum(each.nbytes for each in self.statistics.values())
        }

    def clear_gradients(self) -> None:
        for memory in self.updates:
            memory.gradients[...] = 0


def _allocate(update: UpdateLayout, places: Places, blocks: Blocks) -> UpdateMemory:
    dtype = np.dtype(update.dtype)
    vectors, matrices = allocate_vectors(update, places.size, dtype, blocks, {})
    parameters, gradients = vectors.pop("parameters"), vectors.pop("gradients")
    slots = fill_slots(update, vectors)
    return UpdateMemory(update, places, parameters, gradients, slots, vectors, matrices)


def fill_slots(update: UpdateLayout, vectors: dict[str, Array]) -> dict[str, Any]:
    """The slots with their first values: taken from the vectors, or separate tensors."""
    slots: dict[str, Any] = {}
    for slot, wanted in update.slots.items():
        fill = update.initial.get(slot, 0.0)
        if update.flat:
            slots[slot] = vectors.pop(slot)
            slots[slot][...] = fill
        else:
            dtype = update.slot_dtype(slot)
            slots[slot] = {name: np.full(shape, fill, dtype) for name, shape in wanted.items()}
    return slots


def allocate_vectors(
    update: UpdateLayout,
    size: int,
    dtype: np.dtype[Any],
    blocks: Blocks,
    given: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Allocate the vectors of an update, those of a block as rows of a matrix; and the matrices.

    Vectors that are `given` are used as they are.
    """
    vectors: dict[str, Array] = dict(given)
    matrices: dict[str, Array] = {}
    for block in blocks:
        matrix = aligned_zeros(len(block) * size, dtype).reshape(len(block), size)
        vectors |= zip(block, matrix)
        matrices |= {name: matrix[i : i + 2] for i, name in pairs_of(block)}
    for name in ("parameters", "gradients"):
        if name not in vectors:
            vectors[name] = aligned_zeros(size, dtype)
    for slot in update.slots if update.flat else ():
        if slot not in vectors:
            vectors[slot] = aligned_zeros(size, update.slot_dtype(slot))
    return vectors, matrices


def bytes_of_updates(updates: Sequence[UpdateMemory]) -> dict[str, int]:
    """The bytes of the vectors of updates, by kind; a view counts as it is long."""
    found = {"parameters": 0, "gradients": 0, "slots": 0, "scratch": 0}
    for memory in updates:
        found["parameters"] += memory.parameters.nbytes
        found["gradients"] += memory.gradients.nbytes
        found["scratch"] += sum(vector.nbytes for vector in memory.scratch.values())
        for held in memory.slots.values():
            arrays = held.values() if isinstance(held, dict) else [held]
            found["slots"] += sum(array.nbytes for array in arrays)
    return found
