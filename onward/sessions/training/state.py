"""State: the tensors of a training run, where the graphs read and write them.

The parameters of an update graph lie one behind the other in one vector, their gradients and slots
in others of the same layout: forward and backward see named tensors, the update sees vectors, and
nothing is ever copied between the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.names import near
from onward.optimizers.rows import pairs_of
from onward.sessions.training.arrays import to_array
from onward.sessions.training.program import Array, Parameter, TrainingProgram, Update

_LINE = 64  # bytes: a tensor begins where a line of the processor's cache does


@dataclass(frozen=True)
class Room:
    """The tensors of one update: vectors, and each parameter's part of them."""

    update: Update
    places: dict[str, slice]
    shapes: dict[str, tuple[int, ...]]
    parameters: Array
    gradients: Array
    slots: dict[str, Any]  # slot -> vector, or slot -> parameter -> tensor where it is not flat
    scratch: dict[str, Array]  # vectors that a step keeps to itself
    matrices: dict[str, Array]  # vectors that lie one behind the other, two by two: `x|y`

    def view(self, vector: Array, name: str) -> Array:
        """A parameter's part of a vector."""
        return vector[self.places[name]].reshape(self.shapes[name])

    def slot(self, slot: str, name: str) -> Array:
        """A slot of one parameter."""
        held = self.slots[slot]
        return held[name] if isinstance(held, dict) else self.view(held, name)


class State:
    """Parameters, gradients, slots and running statistics, by name."""

    def __init__(self, program: TrainingProgram) -> None:
        known = {parameter.name: parameter for parameter in program.parameters}
        self.rooms = [_room(update, known) for update in program.updates]
        self.statistics = {n: np.array(program.initial[n]) for n in program.state}
        self.frozen = {name: program.initial[name] for name in program.frozen}
        self._home = {name: room for room in self.rooms for name in room.update.parameters}
        self.parameters = {p.name: self._view(p.name, "parameters") for p in program.parameters}
        self.gradients = {p.name: self._view(p.name, "gradients") for p in program.parameters}
        for name, view in self.parameters.items():
            np.copyto(view, program.initial[name])
        if "average" in program.settings:
            self.averages = {n: self._home[n].slot("average", n) for n in self.parameters}
            for name, view in self.averages.items():
                np.copyto(view, self.parameters[name])
        else:
            self.averages = {}

    def slots(self) -> dict[str, Array]:
        """Every slot of every parameter, as `slot/parameter`."""
        return {
            f"{slot}/{name}": room.slot(slot, name)
            for room in self.rooms
            for slot, shapes in room.update.slots.items()
            for name in shapes
        }

    def assign(self, tensors: Mapping[str, Any]) -> None:
        """Give parameters and statistics new values: all of them fit, or none is set."""
        if not isinstance(tensors, Mapping):
            kind = type(tensors).__name__
            raise OptionError(
                f"parameters are a dictionary of arrays, not {kind}\ngive {{name: ...}}"
            )
        known = {**self.parameters, **self.statistics}
        arrays = {}
        for name, tensor in tensors.items():
            if name not in known:
                raise OptionError(f"there is no parameter {name!r}\n{near(name, known)}")
            place = known[name]
            array = arrays[name] = to_array(tensor, f"parameter {name!r}", OptionError)
            if array.shape != place.shape:
                raise OptionError(
                    f"parameter {name!r} has shape {place.shape}, not {array.shape}\n"
                    "give an array of that shape"
                )
            if not np.can_cast(array.dtype, place.dtype, "same_kind"):
                raise OptionError(
                    f"parameter {name!r} is of {place.dtype}, not of {array.dtype}\n"
                    f"give an array that can be cast to {place.dtype}"
                )
        for name, array in arrays.items():
            np.copyto(known[name], array, casting="same_kind")

    def clear_gradients(self) -> None:
        for room in self.rooms:
            room.gradients[...] = 0

    def _view(self, name: str, vector: str) -> Array:
        room = self._home[name]
        return room.view(getattr(room, vector), name)


def _room(update: Update, known: dict[str, Parameter]) -> Room:
    places, size = {}, 0
    dtype = np.dtype(update.dtype)
    step = _LINE // dtype.itemsize
    for name in update.parameters:
        places[name] = slice(size, size + known[name].size)
        size += -(-known[name].size // step) * step
    shapes = {name: known[name].shape for name in update.parameters}
    vectors, matrices = _vectors(update, size, dtype)
    parameters, gradients = vectors.pop("parameters"), vectors.pop("gradients")
    slots: dict[str, Any] = {}
    for slot, wanted in update.slots.items():
        fill = update.initial.get(slot, 0.0)
        if update.flat:
            slots[slot] = vectors.pop(slot)
            slots[slot][...] = fill
        else:
            slots[slot] = {name: np.full(shape, fill, dtype) for name, shape in wanted.items()}
    return Room(update, places, shapes, parameters, gradients, slots, vectors, matrices)


def _vectors(
    update: Update, size: int, dtype: np.dtype[Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Every vector of an update, those of a block as the rows of a matrix; and the matrices."""
    vectors: dict[str, Array] = {}
    matrices: dict[str, Array] = {}
    for block in update.blocks:
        matrix = aligned(len(block) * size, dtype).reshape(len(block), size)
        vectors |= zip(block, matrix)
        matrices |= {name: matrix[i : i + 2] for i, name in pairs_of(block)}
    for name in ("parameters", "gradients", *(update.slots if update.flat else ())):
        if name not in vectors:
            vectors[name] = aligned(size, dtype)
    return vectors, matrices


def aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """A vector of zeros that begins at a multiple of a cache line."""
    raw = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    vector = raw[start : start + size * dtype.itemsize].view(dtype)
    vector[...] = 0
    return vector
