"""Run an optimizer's update: by a session's graphs, or by the optimizer model's own graph."""

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
from onward.training.api.training_state import TrainingState, UpdateGraphs

UPDATES = "onward.updates"  # a key of metadata


class Update(Protocol):
    """One step of an optimizer; False where the graph reports that it changed nothing."""

    def run(self, learning_rate: float, step: int) -> bool: ...


def read_updates(metadata: Mapping[str, str]) -> UpdateGraphs | None:
    """The session's updates in an optimizer model's metadata; None if there are none."""
    packed = unpack(metadata, UPDATES)
    if packed is None:
        return None
    try:
        layouts, graphs = unpack_updates(packed["updates"])
        clip = packed["clip_norm"]
        return UpdateGraphs(
            layouts=layouts,
            graphs=graphs,
            sequences=dict(packed["sequences"]),
            clip_norm=None if clip is None else float(clip),
            probe=decompress_graph(packed["probe"]),
        )
    except UNREADABLE as error:
        raise unreadable_error(UPDATES, error) from error


class SessionUpdate:
    """A session's updates, in place, over the store of a module's gradients."""

    def __init__(
        self,
        updates: UpdateGraphs,
        own_rate: float,
        state: TrainingState,
        engine: Callable[[], OrtTraining],
        paired: bool,
    ) -> None:
        self._updates, self._state, self._engine, self._paired = updates, state, engine, paired
        self._rates = LearningRates(own_rate, [each.learning_rate for each in updates.layouts])
        state.set_updates(updates, paired)

    def run(self, learning_rate: float, step: int) -> bool:
        self._state.set_updates(
            self._updates, self._paired
        )  # another optimizer may have changed it
        engine = self._engine()
        if self._rates.own != learning_rate:
            self._rates.set(learning_rate)
        engine.set_rates(step - 1, [[rate] for rate in self._rates.updates])
        engine.update(1, 1.0)
        return True


class ListUpdate:
    """A graph over sequences of tensors; its results are copied into the parameters."""

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
