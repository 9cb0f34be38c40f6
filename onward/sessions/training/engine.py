"""What runs a graph of a program: bound to memory on onnxruntime, or through any provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from onward.providers.ort.bound import BoundSession, to_numpy
from onward.sessions.inference import InferenceSession
from onward.sessions.training.program import PHASE

Array = np.ndarray[Any, Any]


class Engine(Protocol):
    """A graph whose inputs and outputs may be arrays that stay where they are."""

    def arguments(self) -> Sequence[Any]:
        """Its inputs: name, type, shape."""
        ...

    def results(self) -> Sequence[Any]:
        """Its outputs: name, type, shape."""
        ...

    def bind_input(self, name: str, array: Array) -> None: ...

    def bind_output(self, name: str, array: Array) -> None: ...

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        """Run once; these outputs, which are not bound, in fresh memory."""
        ...


class Bound:
    """Stock onnxruntime, which reads and writes the arrays where they lie."""

    def __init__(self, session: BoundSession) -> None:
        self._session = session
        self.bind_input, self.bind_output = session.bind_input, session.bind_output

    def arguments(self) -> Sequence[Any]:
        return list(self._session.inputs.values())

    def results(self) -> Sequence[Any]:
        return list(self._session.outputs.values())

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        return [to_numpy(value) for value in self._session.run(wanted)]


class Phase:
    """A branch of a program's `step`: the gradients, or all updates."""

    def __init__(self, session: BoundSession, is_train: bool, partner: Phase | None = None) -> None:
        self._session, self._partner, self._complete = session, partner, False
        self.bind_input, self.bind_output = session.bind_input, session.bind_output
        session.bind_input(PHASE, np.array(is_train))

    def arguments(self) -> Sequence[Any]:
        return [a for a in self._session.inputs.values() if a.name != PHASE]

    def results(self) -> Sequence[Any]:
        return list(self._session.outputs.values())

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        if not self._complete and self._partner is not None:
            self._partner._session.lend(self._session)  # the other branch's: this run reads none
            self._complete = True
        if not wanted and self._session.is_bound():
            self._session.run_bound()
            return []
        return [to_numpy(value) for value in self._session.run(wanted)]


class Loose:
    """Any provider; results are copied to where they are wanted."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._read: dict[str, Array] = {}
        self._written: dict[str, Array] = {}

    def arguments(self) -> Sequence[Any]:
        return self._session.get_inputs()

    def results(self) -> Sequence[Any]:
        return self._session.get_outputs()

    def bind_input(self, name: str, array: Array) -> None:
        self._read[name] = array

    def bind_output(self, name: str, array: Array) -> None:
        self._written[name] = array

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        names = [*self._written, *wanted]
        results = self._session.run(names, self._read)
        for name, result in zip(names, results):
            if name in self._written:
                np.copyto(self._written[name], np.asarray(result))
        return [np.asarray(result) for result in results[len(self._written) :]]
