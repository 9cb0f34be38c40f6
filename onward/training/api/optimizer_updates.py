"""Updates: those that a session would run, or an optimizer model's own graph over lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from onward.optimizers.learning_rates import LearningRates
from onward.providers.ort.bound_session import BoundSession
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.ort.training.metadata_encoding import (
    UNREADABLE,
    decompress_graph,
    unpack,
    unpack_updates,
    unreadable_error,
)
from onward.training.api.training_state import SessionUpdates, TrainingState

UPDATES = "onward.updates"  # a key of metadata


class Update(Protocol):
    """One step of an optimizer; False where the graph said that it left all as it was."""

    def run(self, learning_rate: float, step: int) -> bool: ...


def read_updates(metadata: Mapping[str, str]) -> SessionUpdates | None:
    """The updates that are packed in an optimizer model; None: none are."""
    plain = unpack(metadata, UPDATES)
    if plain is None:
        return None
    try:
        layouts, graphs = unpack_updates(plain["updates"])
        clip = plain["clip_norm"]
        return SessionUpdates(
            layouts=layouts,
            graphs=graphs,
            sequences=dict(plain["sequences"]),
            clip_norm=None if clip is None else float(clip),
            probe=decompress_graph(plain["probe"]),
        )
    except UNREADABLE as error:
        raise unreadable_error(UPDATES, error) from error


class SessionUpdate:
    """The updates of a session, in place, over the store that a module's gradients lie in."""

    def __init__(
        self,
        updates: SessionUpdates,
        own_rate: float,
        state: TrainingState,
        engine: Callable[[], OrtTraining],
        paired: bool,
    ) -> None:
        self._updates, self._state, self._engine, self._paired = updates, state, engine, paired
        self._rates = LearningRates(own_rate, [each.learning_rate for each in updates.layouts])
        state.lay_out_for(updates, paired)

    def run(self, learning_rate: float, step: int) -> bool:
        self._state.lay_out_for(self._updates, self._paired)  # if another has not
        engine = self._engine()
        if self._rates.own != learning_rate:
            self._rates.set(learning_rate)
        engine.set_rates(step - 1, [[rate] for rate in self._rates.updates])
        engine.update(1, 1.0)
        return True


class ListUpdate:
    """A graph over sequences of tensors; its results are copied to where the parameters lie."""

    def __init__(self, session: BoundSession, state: TrainingState, order: Sequence[str]) -> None:
        self._session, self._state, self._order = session, state, list(order)

    def run(self, learning_rate: float, step: int) -> bool:
        store, optimizer = self._state.store, self._state.optimizer
        assert optimizer is not None
        slots = {slot: [held[n] for n in self._order] for slot, held in optimizer.slots.items()}
        lists = {
            "params": [store.parameters[name] for name in self._order],
            "gradients": [store.gradients[name] for name in self._order],
            **slots,
        }
        found = self._session.run_unbound(
            {
                "learning_rate": np.array([learning_rate], np.float32),
                "step": np.array([step], np.int64),
                **lists,
            }
        )
        if not bool(found["updated_flag"].reshape(-1)[0]):
            return False
        for name, arrays in lists.items():
            if name != "gradients":
                for array, fresh in zip(arrays, found[f"updated_{name}"], strict=True):
                    array[...] = fresh.reshape(array.shape)
        return True
