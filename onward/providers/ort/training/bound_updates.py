"""The update graphs of a program, bound to the vectors of its store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from onward.optimizers.clip import NORM
from onward.programs.program import Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.finite_check import is_finite
from onward.providers.ort.training.lowered import UPDATE, LoweredProgram
from onward.providers.ort.training.store import NumpyStore, UpdateMemory, aligned

_PIECE = 1 << 16  # elements that are squared at a time

Pairs = list[tuple[str, str | None, Array]]  # input, the output that takes its place, the tensor


class Opener(Protocol):
    """Opens graphs of a program on the engine that was chosen."""

    def any(self, graph: bytes) -> BoundGraph: ...

    def update(self, graph: bytes) -> BoundGraph | None:
        """An update over adjacent rows; None where its memory would not be the one bound."""
        ...

    def one_run(self) -> BoundGraph | None:
        """Gradients and updates in one run; None where that cannot be."""
        ...


class Updates:
    """Gradients gathered, measured, and given to the update graphs."""

    def __init__(
        self,
        program: LoweredProgram,
        store: NumpyStore,
        opener: Opener,
        at_once: int | None = None,  # elements that one run updates; None: all of them
    ) -> None:
        layout = program.layout
        self._program, self._store, self._opener = program, store, opener
        self._at_once = at_once
        self._clips = layout.settings.clip_norm is not None
        self._scaled = layout.settings.scaled
        self._gradients = {p.name: p.gradient for p in layout.parameters}
        self._graphs: list[BoundGraph | InPieces] | None = None
        self._rates = [np.zeros((), update.dtype) for update in layout.updates]
        self._count = np.zeros((), np.int64)
        self._factors = [np.ones((), update.dtype) for update in layout.updates]
        self._squares = np.zeros((), np.float64)
        self._spare: list[Array] | None = None  # where later micro-batches' gradients go first
        self._bound_first: dict[int, bool] = {}
        self._share = 1.0  # what one micro-batch's gradients are multiplied by
        self._norm: float | None = 0.0  # None: not measured yet

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._count[...] = steps + 1
        for tensor, ahead in zip(self._rates, rates):
            tensor[...] = ahead[0]

    # -- gradients -----------------------------------------------------------------------------

    def bind_gradients(self, graph: BoundGraph, first: bool) -> None:
        """Have gradients written to their places; those of later micro-batches to spare ones."""
        if self._bound_first.get(id(graph)) == first:
            return
        for memory, vector in zip(self._store.updates, self._targets(first)):
            for name in memory.update.parameters:
                graph.bind_output(self._gradients[name], memory.view(vector, name))
        self._bound_first[id(graph)] = first

    def add_gradients(self, first: bool) -> None:
        """Add a later micro-batch's gradients to those of the ones before."""
        if not first:
            with np.errstate(all="ignore"):  # whoever updates asks whether the sums are finite
                for memory, spare in zip(self._store.updates, self._targets(first)):
                    np.add(memory.gradients, spare, out=memory.gradients)

    def are_finite(self, measure: Array, first: bool) -> bool:
        """Whether a micro-batch's gradients are: 1e38 is, four of it are not in float32."""
        return math.isfinite(measure) or all(map(is_finite, self._targets(first)))

    def last_norm(self) -> float:
        """The norm of the gradients of the last update, before clipping."""
        if self._norm is None:
            self._norm = math.sqrt(_squared(self._targets(True))) * self._share
        return self._norm

    def _targets(self, first: bool) -> list[Array]:
        """The vectors that a micro-batch's gradients are written to."""
        if first:
            return self._store.gradient_buffers()
        if self._spare is None:
            self._spare = [aligned(g.size, g.dtype) for g in self._store.gradient_buffers()]
        return self._spare

    # -- the update ----------------------------------------------------------------------------

    def begin(self, micro: int, scale: float) -> None:
        """Set the scalars of the next update."""
        self._norm = None
        self._share = 1.0 / (micro * scale)
        for factor in self._factors:
            factor[...] = self._share

    def run(self, measure: Array | None, micro: int, scale: float) -> None:
        """One update of every parameter; `measure`: of these gradients, if it is known."""
        self.begin(micro, scale)
        if self._clips and not self._measured(measure):
            self._squares[...] = _squared(self._targets(True))
            self._norm = math.sqrt(self._squares) * self._share
        if self._share != 1.0 and not self._scaled:  # more micro-batches than the program knows of
            for memory in self._store.updates:
                gradients = memory.gradients
                np.multiply(gradients, gradients.dtype.type(self._share), out=gradients)
            self._share = 1.0
        for graph in self._separate():
            graph.run()

    def end(self, measure: Array) -> None:
        """An update was made in one run with its gradients."""
        if self._clips:
            self._measured(measure)

    def _measured(self, measure: Array | None) -> bool:
        """Take the norm from the sum of squares, unless that is too much for float32."""
        if measure is None or not math.isfinite(measure):
            return False
        self._squares[...] = measure
        self._norm = math.sqrt(measure) * self._share
        return True

    def _separate(self) -> list[BoundGraph | InPieces]:
        """Each update graph in a session of its own."""
        if self._graphs is None:
            self._graphs = [self._open(i) for i in range(len(self._program.updates))]
        return self._graphs

    def _open(self, i: int) -> BoundGraph | InPieces:
        """An update graph whose outputs take the place of its inputs."""
        update, memory = self._program.updates[i], self._store.updates[i]
        bound = self._opener.update(update.bound) if memory.matrices or not update.blocks else None
        graph = self._opener.any(update.graph) if bound is None else bound
        pairs = _pairs(memory, bound=bound is not None)
        most = self._at_once
        if memory.update.flat and not memory.matrices and most and memory.parameters.size > most:
            self._bind(graph, i, [])
            return InPieces(graph, pairs, most)
        self._bind(graph, i, pairs)
        return graph

    def join(self, step: BoundGraph) -> None:
        """Bind the updates of a graph that computes gradients and then updates, in one run."""
        for i, memory in enumerate(self._store.updates):
            self._bind(step, i, _pairs(memory, bound=True), UPDATE.format(i))
        self.bind_gradients(step, first=True)

    def _bind(self, graph: BoundGraph, i: int, pairs: Pairs, prefix: str = "") -> None:
        """Bind an update's inputs, and its outputs in their places."""
        taken = {argument.name for argument in graph.arguments()}
        graph.bind_input(f"{prefix}learning_rate", self._rates[i])
        graph.bind_input(f"{prefix}step", self._count)
        if self._scaled:
            graph.bind_input(f"{prefix}gradient_scale", self._factors[i])
        if prefix + NORM in taken:
            graph.bind_input(prefix + NORM, self._squares)
        for source, target, array in pairs:
            if prefix + source in taken:
                graph.bind_input(prefix + source, array)
            if target is not None:
                graph.bind_output(prefix + target, array)


class InPieces:
    """An update of long vectors, a piece at a time: what it needs in addition stays small."""

    def __init__(self, graph: BoundGraph, pairs: Pairs, most: int) -> None:
        self._graph, self._pairs, self._most = graph, pairs, most

    def run(self) -> None:
        for start in range(0, self._pairs[0][2].size, self._most):
            for source, target, vector in self._pairs:
                piece = vector[start : start + self._most]
                self._graph.bind_input(source, piece)
                if target is not None:
                    self._graph.bind_output(target, piece)
            self._graph.run()


def _pairs(memory: UpdateMemory, bound: bool = False) -> Pairs:
    """The tensors of an update graph; of one over adjacent rows its matrices as well."""
    pairs: Pairs = []
    if memory.update.flat:
        scratch = memory.scratch if bound else {}
        vectors = {"parameters": memory.parameters, **memory.slots, **scratch}
        pairs += [(name, f"new_{name}", vector) for name, vector in vectors.items()]
        pairs.append(("gradients", None, memory.gradients))
        if bound:
            pairs += [(name, None, matrix) for name, matrix in memory.matrices.items()]
        return pairs
    for name in memory.update.parameters:
        pairs += [
            (name, f"{name}.new", memory.view(memory.parameters, name)),
            (f"{name}.gradient", None, memory.view(memory.gradients, name)),
        ]
    for slot, tensors in memory.slots.items():
        pairs += [(f"{name}.{slot}", f"{name}.{slot}.new", t) for name, t in tensors.items()]
    return pairs


def _squared(vectors: Sequence[Array]) -> float:
    """The sum of squares, in float64 and without BLAS: its threads would fight onnxruntime's."""
    total = 0.0
    for vector in vectors:
        for start in range(0, vector.size, _PIECE):
            piece = vector[start : start + _PIECE].astype(np.float64)
            total += float(np.add.reduce(np.square(piece, out=piece)))
    return total
