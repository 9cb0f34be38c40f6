"""TrainingState: parameters, gradients and optimizer state, each kind in flat buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.checkpoints.matching import fingerprint
from onward.errors import CheckpointMismatch, CheckpointNominal, FeedError
from onward.training.api.contents import Contents, StoredOptimizer, StoredParameter
from onward.training.api.flat import Array, Tensors

Kinds = Mapping[str, tuple[str, tuple[int, ...]]]  # (type, shape) by name
Slots = Mapping[str, tuple[str, tuple[int, ...], float]]  # ... and the number that it begins with


class TrainingState:
    """What a checkpoint held, laid out for training: trainable parameters first, back to back."""

    def __init__(self, contents: Contents) -> None:
        stored = sorted(contents.parameters.items(), key=lambda item: not item[1].requires_grad)
        self.requires_grad = {name: one.requires_grad for name, one in stored}
        self.missing = {name for name, one in stored if one.data is None}
        self.properties = contents.properties
        self.optimizer = contents.optimizer
        self.model = contents.model
        self.slots: dict[str, Tensors] = {}
        self.parameters: Tensors | None = None
        self.gradients: Tensors | None = None
        self._data = {name: one.data for name, one in stored if one.data is not None}
        if not self.missing:
            self._lay_out({name: _kind(data) for name, data in self._data.items()})

    @property
    def trainable(self) -> list[str]:
        return [name for name, trainable in self.requires_grad.items() if trainable]

    def kinds(self, trainable_only: bool) -> Kinds:
        """The type and shape of each parameter that a module has laid out."""
        assert self.parameters is not None
        names = self.trainable if trainable_only else self.parameters.names()
        return {name: _kind(self.parameters[name]) for name in names}

    def belong_to(self, kinds: Kinds, trainable: Sequence[str], whole: bool = True) -> None:
        """Check that these are the parameters of a model; a nominal state takes their shapes.

        A model that is not the `whole` one may do without some of them.
        """
        for name, (dtype, shape) in kinds.items():
            _check_name(name, self.requires_grad, "the model has it, the checkpoint has not")
            if (name in trainable) != self.requires_grad[name]:
                words = ("trainable", "frozen") if name in trainable else ("frozen", "trainable")
                raise _other(f"parameter {name!r} is {words[0]} in the model", words[1])
            known = self._data.get(name)
            if self.parameters is not None and name in self.parameters:
                known = self.parameters[name]
            if known is not None and _kind(known) != (dtype, shape):
                law = f"parameter {name!r} is {dtype} of shape {shape} in the model"
                raise _other(law, f"{known.dtype} of shape {known.shape}")
        for name in self.trainable if whole else ():
            _check_name(name, kinds, "the checkpoint has it, the model has not")
        if whole and self.model is not None:  # a nominal one says nothing else of its shapes
            self._check_fingerprint({name: kinds[name][1] for name in self.trainable})
        if self.parameters is None:
            self._lay_out({name: kinds[name] for name in self.requires_grad if name in kinds})
            self.missing &= kinds.keys()

    def _check_fingerprint(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if self.model != fingerprint(shapes):
            raise CheckpointMismatch(
                "the checkpoint is of another model: the trainable parameters have its names, "
                "but other shapes\nload the checkpoint that was made with this training model"
            )

    def _lay_out(self, kinds: Kinds) -> None:
        self.parameters = Tensors(kinds)
        for name in list(self._data):
            if name in self.parameters:
                self.parameters[name][...] = self._data.pop(name)  # its memory is free

    def check_loaded(self) -> None:
        if self.missing:
            raise CheckpointNominal(
                "the checkpoint is nominal: its parameters have no data\n"
                "Please load the model parameters first. "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False) does"
            )

    def read(self, name: str) -> Array:
        """A parameter, where it lies."""
        if self.parameters is None or name in self.missing:
            raise CheckpointNominal(
                f"parameter {name!r} has no data: the checkpoint is nominal\n"
                "Please load the parameter states first: "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        return self.parameters[name]

    def put(self, name: str, value: Any) -> None:
        """New numbers for a parameter, of its type and shape."""
        if self.missing:
            raise CheckpointNominal(
                f"parameter {name!r} cannot be set alone: the checkpoint is nominal\n"
                "Please load all the parameter states first: "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        target, given = self.read(name), np.asarray(value)
        if _kind(given) != _kind(target):
            raise FeedError(
                f"parameter {name!r} is {target.dtype} of shape {target.shape}, "
                f"not {given.dtype} of shape {given.shape}"
            )
        target[...] = given

    def flatten(self, trainable_only: bool) -> Array | None:
        """The float32 parameters as one buffer, or its beginning, where the trainable ones lie.

        Parameters of other types (frozen numbers of a graph, most often) are not in it.
        """
        if self.parameters is None or "float32" not in self.parameters.flats:
            return None
        flat = self.parameters.flats["float32"]
        size = sum(flat[name].size for name in flat.names() if self.requires_grad[name])
        return flat.buffer[:size] if trainable_only else flat.buffer

    def brought(self, trainable_only: bool) -> None:
        """Remember that a buffer has brought the parameters that `flatten` gives."""
        assert self.parameters is not None
        names = self.parameters.flats["float32"].names()
        self.missing -= {n for n in names if self.requires_grad[n] or not trainable_only}

    def contents(self, include_optimizer: bool) -> Contents:
        """What a checkpoint file is to hold."""
        parameters = {
            name: StoredParameter(trainable, None if name in self.missing else self._held(name))
            for name, trainable in self.requires_grad.items()
        }
        optimizer = self.optimizer if include_optimizer else None
        return Contents(parameters, dict(self.properties), optimizer, self.model)

    def _held(self, name: str) -> Array:
        """A parameter's data, laid out or not yet."""
        return self._data[name] if name in self._data else self.read(name)

    def start_optimizer(self, slots: Mapping[str, Slots], lr: float) -> StoredOptimizer:
        """What was saved of the optimizer, or a new one; a slot is laid out like the gradients."""
        saved = self.optimizer = self.optimizer or StoredOptimizer(0, lr)
        if saved.learning_rate is None:
            saved.learning_rate = saved.initial_learning_rate
        if self.slots.keys() == slots.keys():  # another Optimizer has laid them out
            return saved
        old = _renamed(saved.slots, list(slots))
        fresh = {}
        for slot, about in slots.items():
            tensors = Tensors({name: (dtype, shape) for name, (dtype, shape, _) in about.items()})
            fresh[slot] = tensors
            for name, (*_, initial) in about.items():
                tensors[name][...] = _saved(old, slot, name, tensors[name], initial)
        self.slots = fresh
        saved.slots = {slot: {n: ts[n] for n in ts.names()} for slot, ts in fresh.items()}
        return saved


def _renamed(
    saved: dict[str, dict[str, Array]], slots: Sequence[str]
) -> dict[str, dict[str, Array]]:
    """Saved slots under the names that the optimizer has for them; the peer numbers them."""
    numbered = {f"momentum{i}": slot for i, slot in enumerate(slots)}
    if saved and not saved.keys() <= set(slots) and saved.keys() <= numbered.keys():
        return {numbered[name]: arrays for name, arrays in saved.items()}
    return saved


def _saved(
    saved: dict[str, dict[str, Array]], slot: str, name: str, like: Array, initial: float
) -> Array | float:
    """A saved slot of a parameter; where nothing was saved at all, what it begins with."""
    if not saved:
        return initial
    found = saved.get(slot, {}).get(name)
    if found is None:
        raise _other(f"the optimizer has {slot!r} of {name!r}", "no such state")
    if _kind(found) != _kind(like):
        law = f"{slot!r} of {name!r} is {like.dtype} of shape {like.shape} in the model"
        raise _other(law, f"{found.dtype} of shape {found.shape}")
    return found


def _kind(array: Array) -> tuple[str, tuple[int, ...]]:
    return array.dtype.name, array.shape


def _check_name(name: str, known: Mapping[str, Any], what: str) -> None:
    if name not in known:
        raise CheckpointMismatch(
            f"the checkpoint is of another model: parameter {name!r}: {what}\n"
            "load the checkpoint that was made with this training model"
        )


def _other(law: str, have: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the checkpoint is of another model: {law}, in the checkpoint {have}\n"
        "load the checkpoint that was made with this training model"
    )
