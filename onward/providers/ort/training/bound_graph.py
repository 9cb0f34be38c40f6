"""BoundGraph: a graph of a training program whose inputs and outputs are bound to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from onward.providers.ort.bound_session import BoundSession, to_numpy

Array = np.ndarray[Any, Any]


class BoundGraph(Protocol):
    """A graph that reads its inputs from arrays and writes its outputs to arrays, at every run."""

    def arguments(self) -> Sequence[Any]:
        """Its inputs: name, type, shape."""
        ...

    def results(self) -> Sequence[Any]:
        """Its outputs: name, type, shape."""
        ...

    def bind_input(self, name: str, array: Array) -> None: ...

    def bind_output(self, name: str, array: Array) -> None: ...

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        """Run once. Returns the `wanted` outputs, which are not bound, in new memory."""
        ...


class OrtGraph:
    """A graph in stock onnxruntime, which accesses the bound arrays without copies."""

    def __init__(self, session: BoundSession) -> None:
        self._session = session
        self.bind_input, self.bind_output = session.bind_input, session.bind_output

    def arguments(self) -> Sequence[Any]:
        return list(self._session.inputs.values())

    def results(self) -> Sequence[Any]:
        return list(self._session.outputs.values())

    def run(self, wanted: Sequence[str] = ()) -> list[Array]:
        return [to_numpy(value) for value in self._session.run(wanted)]
