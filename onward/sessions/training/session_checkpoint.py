"""A session's state as a checkpoint: named tensors and plain properties, and back.

The layout is that of the artifacts' checkpoints: parameters and statistics under their own names,
slots as `optimizer/{slot}/{parameter}`, gradients that await an update as `gradients/{parameter}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from onward.checkpoints.model_match import check_match, fingerprint
from onward.checkpoints.sharded.pieces import Piece, whole_pieces
from onward.checkpoints.sharded.stored_tensors import StoredTensors
from onward.errors import CheckpointError, CheckpointMismatch
from onward.optimizers.learning_rates import is_state
from onward.programs.program import Array, Layout, gradient_name
from onward.providers.provider import Store
from onward.sessions.training.process_state import PREFIX

_TRAINING = {"updates": Mapping, "scale": Mapping, "seed": int, "micro": int, "finite": bool}
_UPDATES = {"steps": int, "skipped": int}


def tensor_names(layout: Layout, pending: bool) -> list[str]:
    """Every tensor that a resumed run needs; `pending`: gradients await an update."""
    return [*layout.tensors(), *(gradient_name(name) for name in layout.names if pending)]


def tensors_of(layout: Layout, store: Store, pending: bool) -> dict[str, Array]:
    """Every tensor that a resumed run needs, by name."""
    return {name: store.read(name) for name in tensor_names(layout, pending)}


@runtime_checkable
class PieceStore(Protocol):
    """A store that holds pieces of some tensors."""

    def own_pieces(self) -> dict[str, Piece]:
        """The pieces of parameters and slots that this process holds, by name."""
        ...


def pieces_of(layout: Layout, store: Store, pending: bool) -> dict[str, Piece]:
    """What this process holds of every tensor that a resumed run needs.

    Gradients that await an update are joined first, where they are sharded.
    """
    own: dict[str, Piece] = {}
    sharded: set[str] = set()
    if isinstance(store, PieceStore):
        own, specs = store.own_pieces(), layout.tensors()
        # a tensor without elements has no pieces
        sharded = {n for n, (_, shape) in specs.items() if n not in layout.state and 0 not in shape}
    whole = [name for name in tensor_names(layout, pending) if name not in sharded]
    return {**own, **whole_pieces({name: store.read(name) for name in whole})}


def properties_of(
    layout: Layout, training: Mapping[str, Any], rate: float, user: Mapping[str, Any]
) -> dict[str, Any]:
    """What is not a tensor: progress, the next update's rate, and the user's properties."""
    if not isinstance(user, Mapping):
        raise CheckpointError(
            f"session.properties must be a dictionary, not {type(user).__name__}\n"
            "set session.properties[name] instead"
        )
    return {
        "parameters": {name: {"requires_grad": True} for name in layout.names}
        | {name: {"requires_grad": False} for name in layout.state},
        "optimizer": {
            "learning_rate": rate,
            "initial_learning_rate": training["updates"]["learning_rate"],
            "step": training["updates"]["steps"],
        },
        "training": dict(training),
        "user": dict(user),
        "nominal": False,
        "model": fingerprint({p.name: p.shape for p in layout.parameters}),
    }


def restore_tensors(
    layout: Layout,
    store: Store,
    tensors: Mapping[str, Array],
    pending: bool,
    where: str,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Copy a checkpoint's tensors to the store; nothing changes if they do not fit.

    `begin` is called before the first of them is written; what it raises leaves all as it is.
    """
    if not isinstance(tensors, Mapping):
        raise CheckpointMismatch(
            f"{where} must have a dictionary of tensors, not {type(tensors).__name__}\n"
            "give what session.checkpoint() returned"
        )
    wanted = dict(layout.tensors())
    if pending:
        wanted |= {gradient_name(p.name): wanted[p.name] for p in layout.parameters}
    every = tensors.specs if isinstance(tensors, StoredTensors) else tensors
    specs = {name: each for name, each in every.items() if not name.startswith(PREFIX)}
    check_match(specs, {name: empty_like(*spec) for name, spec in wanted.items()}, where)
    begin()
    for name in wanted:
        store.write(name, tensors[name])


def copy_tensors(layout: Layout, source: Store, target: Store, pending: bool) -> None:
    """Copy every tensor that a resumed run needs from one store to another."""
    for name in tensor_names(layout, pending):
        target.write(name, source.read(name))


def empty_like(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array of a type and shape that takes no memory, for comparisons."""
    return np.broadcast_to(np.empty((), dtype), shape)


def training_of(
    properties: Mapping[str, Any], where: str, own_rates: Sequence[float]
) -> dict[str, Any]:
    """The progress of training, for a session whose update graphs have these learning rates.

    A checkpoint without it is not of a session; one with more or fewer learning rates is of a
    session with other groups.
    """
    training = properties.get("training") if isinstance(properties, Mapping) else None
    if not isinstance(training, Mapping) or not _is_complete(training):
        raise CheckpointMismatch(
            f"{where} was not saved by a TrainingSession: it has no progress of training\n"
            "its tensors can be copied: session.set_parameters(checkpoint.read(path).tensors)"
        )
    rates = training["updates"]["learning_rates"]
    if len({*rates}) == len({*own_rates}) == 1:  # a table may be updated with the others, or not
        same = {**training["updates"], "learning_rates": [*rates[:1]] * len(own_rates)}
        return {**training, "updates": same}
    if len(rates) != len(own_rates):
        raise CheckpointMismatch(
            f"{where} has {len(rates)} learning rates, and this session has {len(own_rates)}\n"
            "give the session the groups that it was saved with, or copy only the tensors: "
            "session.set_parameters(...)"
        )
    return dict(training)


def _is_complete(training: Mapping[str, Any]) -> bool:
    """Whether everything that `TrainingSession.checkpoint` writes is there, in its type."""
    updates = training.get("updates")
    return (
        all(isinstance(training.get(name), kind) for name, kind in _TRAINING.items())
        and isinstance(updates, Mapping)
        and all(isinstance(updates.get(name), kind) for name, kind in _UPDATES.items())
        and is_state(updates)
    )
