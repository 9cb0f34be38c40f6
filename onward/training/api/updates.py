"""Updates: an optimizer's graph over all parameters at once, or over lists of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from onward.errors import InvalidModel
from onward.graph.survey.look import survey
from onward.providers.options import SessionOptions
from onward.providers.ort.bound import BoundSession
from onward.training.api.flat import Array
from onward.training.api.state import TrainingState

AT_ONCE = 1 << 20  # numbers that one run updates: what it needs beside them stays small


class Update(Protocol):
    """One step of an optimizer; False where the graph said that it left all as it was."""

    def run(self, learning_rate: float, step: int) -> bool: ...


class FlatUpdate:
    """A formula for each number alone, run over the flat buffers, in place and by the piece."""

    def __init__(self, session: BoundSession, buffers: Mapping[str, Array], at_once: int) -> None:
        self._session, self._buffers, self._at_once = session, dict(buffers), at_once
        self._rate, self._step = np.zeros((), np.float32), np.zeros((), np.int64)
        session.bind_input("learning_rate", self._rate)
        session.bind_input("step", self._step)
        self._size = buffers["parameters"].size
        if self._size <= self._at_once:
            self._bind(0)

    def run(self, learning_rate: float, step: int) -> bool:
        self._rate[...], self._step[...] = learning_rate, step
        if self._size <= self._at_once:
            self._session.run()
            return True
        for start in range(0, self._size, self._at_once):
            self._bind(start)
            self._session.run()
        return True

    def _bind(self, start: int) -> None:
        for name, buffer in self._buffers.items():
            piece = buffer[start : start + self._at_once]
            self._session.bind_input(name, piece)
            if name != "gradients":
                self._session.bind_output(f"new_{name}", piece)


class ListUpdate:
    """A graph over sequences of tensors; its results are copied to where the parameters lie."""

    def __init__(self, session: BoundSession, state: TrainingState, order: Sequence[str]) -> None:
        self._session, self._state, self._order = session, state, list(order)

    def run(self, learning_rate: float, step: int) -> bool:
        state, order = self._state, self._order
        assert state.parameters is not None and state.gradients is not None
        lists = {
            "params": [state.parameters[name] for name in order],
            "gradients": [state.gradients[name] for name in order],
            **{slot: [tensors[name] for name in order] for slot, tensors in state.slots.items()},
        }
        found = self._session.run_lists(
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


def flat_update(encoded: str, state: TrainingState, options: SessionOptions) -> FlatUpdate | None:
    """The update over flat buffers, if all that is trained lies in one buffer of float32."""
    parameters = state.flatten(trainable_only=True)
    assert state.gradients is not None
    gradients = state.gradients.one_buffer()
    if parameters is None or gradients is None or gradients.size != parameters.size:
        return None
    if gradients.dtype != np.float32:
        return None
    try:
        model = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise InvalidModel(f"the optimizer model's flat update is damaged: {error}") from error
    buffers = {"parameters": parameters, "gradients": gradients}
    for slot, tensors in state.slots.items():
        buffer = tensors.one_buffer()
        if buffer is None or buffer.size != gradients.size:
            return None
        buffers[slot] = buffer
    at_once = gradients.size if _looks_at_all(model) else AT_ONCE
    return FlatUpdate(BoundSession(model, options), buffers, at_once)


def _looks_at_all(model: bytes) -> bool:
    """Whether a flat update reduces over the whole buffer, as one that clips by norm does."""
    operators = survey(model, any_domain=True).operators
    return any("Reduce" in str(operator) for operator in operators)
