"""TrainingState: parameters, gradients and optimizer state, in the store of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onward.checkpoints.file_contents import Contents, StoredOptimizer, StoredParameter
from onward.checkpoints.model_match import fingerprint
from onward.errors import CheckpointMismatch, CheckpointNominal, FeedError
from onward.programs.program import Array, Layout, Shape, UpdateLayout
from onward.providers.ort.training.lowered import LoweredUpdate
from onward.providers.ort.training.store import NumpyStore
from onward.training.api.graph_roles import TypesAndShapes

Slots = Mapping[str, tuple[str, Shape, float]]  # type, shape and initial number by parameter


@dataclass(frozen=True)
class UpdateGraphs:
    """The updates of all parameters, and the names that their slots have in checkpoints."""

    layouts: tuple[UpdateLayout, ...]
    graphs: tuple[LoweredUpdate, ...]
    sequences: dict[str, str]
    clip_norm: float | None
    probe: bytes


class TrainingState:
    """The contents of a checkpoint; in a session's store once a module trains them."""

    def __init__(self, contents: Contents) -> None:
        stored = sorted(contents.parameters.items(), key=lambda item: not item[1].requires_grad)
        self.requires_grad = {name: one.requires_grad for name, one in stored}
        self.missing = {name for name, one in stored if one.data is None}
        self.properties = contents.properties
        self.optimizer = contents.optimizer
        self.model = contents.model
        self.tensors = {n: _writable(one.data) for n, one in stored if one.data is not None}
        self.updates: UpdateGraphs | None = None  # that the store's memory order fits
        self._paired = False  # whether the store has the adjacent rows of the updates
        self._layout: Layout | None = None  # of the trained parameters
        self._store: NumpyStore | None = None
        self._is_current = False  # whether the store fits layout and updates

    @property
    def trainable(self) -> list[str]:
        return [name for name, trainable in self.requires_grad.items() if trainable]

    # -- memory --------------------------------------------------------------------------------

    @property
    def store(self) -> NumpyStore:
        """The memory of the trained tensors, allocated (again) when it is accessed."""
        if self._store is None or not self._is_current:
            self._store = self._allocate(self._store)
            self._is_current = True
        return self._store

    @property
    def gradients(self) -> Mapping[str, Array] | None:
        """The accumulated gradients, not copied; None before a module."""
        return None if self._layout is None else self.store.gradients

    def set_layout(self, layout: Layout) -> None:
        """Set what a module trains, and what its forward changes."""
        old = self._layout
        if old is None or (old.names, old.state.keys()) != (layout.names, layout.state.keys()):
            self._layout, self._is_current = layout, False
            self.updates = None

    def set_updates(self, updates: UpdateGraphs, paired: bool) -> None:
        """Set the updates, which determine how parameters, gradients and slots lie in memory."""
        if (self.updates, self._paired) != (updates, paired):
            self.updates, self._paired, self._is_current = updates, paired, False

    def update_layouts(self, layout: Layout) -> tuple[UpdateLayout, ...]:
        """The layouts of the updates; without updates, one for each type of parameters."""
        if self.updates is not None:
            return self.updates.layouts
        names: dict[str, list[str]] = {}
        for name in layout.names:
            names.setdefault(self.tensors[name].dtype.name, []).append(name)
        return tuple(
            UpdateLayout(
                dtype=dtype,
                parameters=tuple(same),
                flat=False,
                slots={},
                initial={},
                learning_rate=0.0,
                optimizer="",
            )
            for dtype, same in names.items()
        )

    def _allocate(self, old: NumpyStore | None) -> NumpyStore:
        """Allocate a store, with the contents of the tensors, gradients and slots."""
        assert self._layout is not None
        held = {*self._layout.names, *self._layout.state}
        layout = replace(
            self._layout,
            updates=self.update_layouts(self._layout),
            frozen=tuple(name for name in self.tensors if name not in held),
            initial=self.tensors,
        )
        graphs = () if self.updates is None else self.updates.graphs
        store = NumpyStore(layout, [each.blocks for each in graphs] if self._paired else None)
        for name, gradient in {} if old is None else old.gradients.items():
            if name in store.gradients:
                store.gradients[name][...] = gradient
        self.tensors |= store.parameters | store.statistics
        if self.updates is not None and self.optimizer is not None:
            _move_slots(self.optimizer.slots, store, self.updates.sequences)
        return store

    # -- the checkpoint and the model ----------------------------------------------------------

    def check_parameters(
        self, kinds: TypesAndShapes, trainable: Sequence[str], whole: bool = True
    ) -> None:
        """Check that the parameters are a model's; a nominal state takes over their shapes.

        An evaluation model (not `whole`) may lack some of them.
        """
        for name, (dtype, shape) in kinds.items():
            _check_name(name, self.requires_grad, "the model has it, the checkpoint has not")
            if (name in trainable) != self.requires_grad[name]:
                words = ("trainable", "frozen") if name in trainable else ("frozen", "trainable")
                raise _mismatch(f"parameter {name!r} is {words[0]} in the model", words[1])
            known = self.tensors.get(name)
            if known is not None and _kind(known) != (dtype, shape):
                law = f"parameter {name!r} is {dtype} of shape {shape} in the model"
                raise _mismatch(law, f"{known.dtype} of shape {known.shape}")
        for name in self.trainable if whole else ():
            _check_name(name, kinds, "the checkpoint has it, the model has not")
        if whole and self.model is not None:  # all that a nominal one has of its shapes
            self._check_fingerprint({name: kinds[name][1] for name in self.trainable})
        if self.missing - self.tensors.keys():
            self.missing &= kinds.keys()
            blank = {n: np.zeros(kinds[n][1], kinds[n][0]) for n in self.missing}
            found = {**self.tensors, **blank}
            self.tensors = {name: found[name] for name in self.requires_grad if name in found}

    def _check_fingerprint(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if self.model != fingerprint(shapes):
            raise CheckpointMismatch(
                "the checkpoint is of another model: the trainable parameters have its names, "
                "but other shapes\nload the checkpoint that was made with this training model"
            )

    def check_loaded(self) -> None:
        if self.missing:
            raise CheckpointNominal(
                "the checkpoint is nominal: it has the parameters' names without their data\n"
                "Please load the model parameters first. "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False) does"
            )

    def read(self, name: str) -> Array:
        """A parameter, not copied."""
        if name in self.missing:
            raise CheckpointNominal(
                f"parameter {name!r} has no data: the checkpoint is nominal (names without data)\n"
                "Please load the parameter states first: "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        return self.tensors[name]

    def write(self, name: str, value: Any) -> None:
        """Write a parameter's data, of the same type and shape."""
        if self.missing:
            raise CheckpointNominal(
                f"parameter {name!r} cannot be set by itself: the checkpoint is nominal "
                "(names without data)\n"
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

    def buffer_names(self, trainable_only: bool) -> list[str]:
        """The parameters that one buffer holds: of float32, the trainable ones first.

        Parameters of other types (frozen numbers of a graph, most often) are not in it.
        """
        return [
            name
            for name, tensor in self.tensors.items()
            if tensor.dtype == np.float32 and (self.requires_grad[name] or not trainable_only)
        ]

    def contents(self, include_optimizer: bool) -> Contents:
        """The contents of a checkpoint file."""
        parameters = {
            name: StoredParameter(trainable, None if name in self.missing else self.tensors[name])
            for name, trainable in self.requires_grad.items()
        }
        optimizer = self.optimizer if include_optimizer else None
        return Contents(parameters, dict(self.properties), optimizer, self.model)

    # -- the optimizer -------------------------------------------------------------------------

    def start_optimizer(self, slots: Mapping[str, Slots], lr: float) -> StoredOptimizer:
        """The saved state of the optimizer, or a new one, with its slots."""
        saved = self.optimizer = self.optimizer or StoredOptimizer(0, lr)
        if saved.learning_rate is None:
            saved.learning_rate = saved.initial_learning_rate
        old = _rename_peer_slots(saved.slots, list(slots))
        saved.slots = {
            slot: {name: _restore_slot(old, slot, name, *about) for name, about in named.items()}
            for slot, named in slots.items()
        }
        return saved


def _writable(data: Array) -> Array:
    return data if data.flags.writeable and data.flags.c_contiguous else np.array(data)


def _move_slots(
    slots: Mapping[str, dict[str, Array]], store: NumpyStore, sequences: Mapping[str, str]
) -> None:
    """Move slots into a store, with their contents."""
    for memory in store.updates:
        for slot, shapes in memory.update.slots.items():
            held = slots.get(sequences[slot], {})
            for name in shapes:
                tensor = memory.slot(slot, name)
                if name in held:
                    tensor[...] = held[name]
                    held[name] = tensor


def _rename_peer_slots(
    saved: dict[str, dict[str, Array]], slots: Sequence[str]
) -> dict[str, dict[str, Array]]:
    """Saved slots under the optimizer's names; the peer numbers them."""
    numbered = {f"momentum{i}": slot for i, slot in enumerate(slots)}
    if saved and not saved.keys() <= set(slots) and saved.keys() <= numbered.keys():
        return {numbered[name]: arrays for name, arrays in saved.items()}
    return saved


def _restore_slot(
    saved: Mapping[str, Mapping[str, Array]],
    slot: str,
    name: str,
    dtype: str,
    shape: Shape,
    initial: float,
) -> Array:
    """A saved slot of a parameter; its initial contents, if no slots were saved."""
    if not saved:
        return np.full(shape, initial, dtype) if initial else np.zeros(shape, dtype)
    found = saved.get(slot, {}).get(name)
    if found is None:
        raise _mismatch(f"the optimizer needs {slot!r} of {name!r}", "it is missing")
    if _kind(found) != (dtype, shape):
        law = f"{slot!r} of {name!r} is {dtype} of shape {shape} in the model"
        raise _mismatch(law, f"{found.dtype} of shape {found.shape}")
    return _writable(found)


def _kind(array: Array) -> tuple[str, Shape]:
    return array.dtype.name, array.shape


def _check_name(name: str, known: Mapping[str, Any], what: str) -> None:
    if name not in known:
        raise CheckpointMismatch(
            f"the checkpoint is of another model: parameter {name!r}: {what}\n"
            "load the checkpoint that was made with this training model"
        )


def _mismatch(law: str, have: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the checkpoint is of another model: {law}, in the checkpoint {have}\n"
        "load the checkpoint that was made with this training model"
    )
