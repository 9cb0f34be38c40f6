"""Run the update graphs of a program, bound to the vectors of its store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from onward.optimizers.clip import NORM
from onward.programs.program import Array
from onward.providers.ort.training.bound_graph import BoundGraph
from onward.providers.ort.training.finite_check import is_finite
from onward.providers.ort.training.lowered import UPDATE, LoweredProgram
from onward.providers.ort.training.store import NumpyStore, UpdateMemory
from onward.providers.ort.training.vector_pool import aligned_zeros

if TYPE_CHECKING:  # stores of one process do not need it
    from onward.providers.ort.training.part_store import NumpyPartStore

_CHUNK = 1 << 16  # elements that are squared at a time
_ROW = 32  # elements that are summed in float32: the sum is as exact as one number of it
_SMALLEST = 1e-25  # below, squares may be missing that float32 cannot hold

Pairs = list[tuple[str, str | None, Array]]  # input, the output that replaces it, the tensor


class TrainingGraphOpener(Protocol):
    """Opens the graphs of a program on the chosen engine."""

    def open(self, graph: bytes) -> BoundGraph: ...

    def open_update(self, graph: bytes) -> BoundGraph | None:
        """An update over adjacent rows; None if it would not use the bound memory itself."""
        ...

    def open_fused_step(self) -> BoundGraph | None:
        """Gradients and updates in one run; None if that is not possible."""
        ...


class GradientOutputs(Protocol):
    """What computes gradients: a graph, or several that run one after the other."""

    def bind_output(self, name: str, array: Array) -> None: ...


class SegmentOutputs(Protocol):
    """Graphs that run one after the other, each to its own gradients."""

    def bind_output(self, name: str, array: Array, segment: int | None = None) -> None: ...


class BoundUpdates:
    """Accumulates gradients, computes their norm, and runs the update graphs."""

    def __init__(
        self,
        program: LoweredProgram,
        store: NumpyStore | NumpyPartStore,
        opener: TrainingGraphOpener,
        at_once: int | None = None,  # elements that one run updates; None: all of them
    ) -> None:
        layout = program.layout
        self._program, self._store, self._opener = program, store, opener
        self._at_once = at_once
        self._clips = layout.settings.clip_norm is not None
        self._scaled = layout.settings.scaled
        self._gradients = {p.name: p.gradient for p in layout.parameters}
        self._graphs: list[BoundGraph | ChunkedUpdate] | None = None
        self._rates = [np.zeros((), update.dtype) for update in layout.updates]
        self._count = np.zeros((), np.int64)
        self._factors = [np.ones((), update.dtype) for update in layout.updates]
        self._squares = np.zeros((), np.float64)
        self._spare: list[Array] | None = None  # for gradients of later micro-batches
        self._bound_first: dict[int, bool] = {}
        self._bucket_targets: dict[int, Array] = {}  # what gradients of an update are bound to
        self._all_squares: float | None = None  # of the gradients of all processes, if set
        self._share = 1.0  # the factor of the gradients of one micro-batch
        self._norm: float | None = 0.0  # None: not computed yet

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        self._count[...] = steps + 1
        for tensor, ahead in zip(self._rates, rates):
            tensor[...] = ahead[0]

    # -- gradients -----------------------------------------------------------------------------

    def bind_bucket(self, segments: SegmentOutputs, segment: int, i: int, first: bool) -> None:
        """Bind the gradients of one update as `bind_gradients` binds those of all."""
        held, places = self._store.hold_gradients(i), self._store.places(i)
        vector = held if first else self._store.temporary.take(held.size, held.dtype)
        if self._bucket_targets.get(i) is not vector:
            for name, where in places.slices.items():
                view = vector[where].reshape(places.shapes[name])
                segments.bind_output(self._gradients[name], view, segment)
            self._bucket_targets[i] = vector

    def add_bucket(self, i: int, first: bool) -> None:
        """Add the gradients of one update to the accumulated ones, unless they are the first."""
        if not first:
            held, spare = self._store.hold_gradients(i), self._bucket_targets[i]
            with np.errstate(all="ignore"):  # an overflow is found before the update
                for where in self._store.places(i).slices.values():
                    np.add(held[where], spare[where], out=held[where])
            self._store.temporary.give_back(spare)

    def bind_gradients(self, graph: GradientOutputs, first: bool) -> None:
        """Bind gradient outputs to the store's vectors; of later micro-batches, to spare ones."""
        if self._bound_first.get(id(graph)) == first:
            return
        for memory, vector in zip(self._store.updates, self._targets(first)):
            for name in memory.update.parameters:
                graph.bind_output(self._gradients[name], memory.view(vector, name))
        self._bound_first[id(graph)] = first

    def add_gradients(self, first: bool) -> None:
        """Add the gradients of a later micro-batch to the accumulated ones."""
        if not first:
            with np.errstate(all="ignore"):  # an overflow is found before the update
                for memory, spare in zip(self._store.updates, self._targets(first)):
                    np.add(memory.gradients, spare, out=memory.gradients)

    def are_finite(self, measure: Array, first: bool) -> bool:
        """Whether the gradients are finite; the measure alone may overflow (four times 1e38)."""
        return math.isfinite(measure) or all(map(is_finite, self._targets(first)))

    def last_norm(self) -> float:
        """The norm of the gradients of the last update, before clipping."""
        if self._norm is None:
            self._norm = math.sqrt(_sum_of_squares(self._targets(True))) * self._share
        return self._norm

    def _targets(self, first: bool) -> list[Array]:
        """The vectors that gradients of the first, or of a later micro-batch are written to."""
        if first:
            return self._store.gradient_buffers()
        if self._spare is None:
            self._spare = [aligned_zeros(g.size, g.dtype) for g in self._store.gradient_buffers()]
        return self._spare

    # -- the update ----------------------------------------------------------------------------

    def begin(self, micro: int, scale: float) -> None:
        """Set the scalars of the next update."""
        self._norm = None
        self._share = 1.0 / (micro * scale)
        for factor in self._factors:
            factor[...] = self._share

    def run(self, measure: Array | None, micro: int, scale: float) -> None:
        """Update every parameter; `measure` of these gradients, if it is known."""
        self.begin(micro, scale)
        if self._all_squares is not None:
            self._squares[...] = self._all_squares
            self._norm = math.sqrt(self._all_squares) * self._share
            self._all_squares = None
        elif self._clips and not self._measured(measure):
            self._squares[...] = _sum_of_squares(self._targets(True))
            self._norm = math.sqrt(self._squares) * self._share
        if self._share != 1.0 and not self._scaled:  # more micro-batches than in the program
            for memory in self._store.updates:
                gradients = memory.gradients
                np.multiply(gradients, gradients.dtype.type(self._share), out=gradients)
            self._share = 1.0
        for graph in self._separate():
            graph.run()

    def set_squares(self, squares: float) -> None:
        """Set the sum of squares of all gradients, where this process holds a part of them."""
        self._all_squares = squares

    def end(self, measure: Array) -> None:
        """Take the norm after an update that ran together with its gradients."""
        if self._clips:
            self._measured(measure)

    def _measured(self, measure: Array | None) -> bool:
        """Take the norm from the sum of squares, unless that has overflowed in float32."""
        if measure is None or not math.isfinite(measure):
            return False
        self._squares[...] = measure
        self._norm = math.sqrt(measure) * self._share
        return True

    def _separate(self) -> list[BoundGraph | ChunkedUpdate]:
        """The update graphs, each in its own session."""
        if self._graphs is None:
            held = [i for i, memory in enumerate(self._store.updates) if memory.parameters.size]
            self._graphs = [self._open(i) for i in held]
        return self._graphs

    def _open(self, i: int) -> BoundGraph | ChunkedUpdate:
        """Open an update graph, with outputs bound to the memory of its inputs."""
        update, memory = self._program.updates[i], self._store.updates[i]
        bound = (
            self._opener.open_update(update.bound) if memory.matrices or not update.blocks else None
        )
        graph = self._opener.open(update.graph) if bound is None else bound
        pairs = _pairs(memory, bound=bound is not None)
        most = self._at_once
        if memory.update.flat and not memory.matrices and most and memory.parameters.size > most:
            self._bind(graph, i, [])
            return ChunkedUpdate(graph, pairs, most)
        self._bind(graph, i, pairs)
        return graph

    def bind_fused_step(self, step: BoundGraph) -> None:
        """Bind the updates of a fused step, which computes gradients and then updates."""
        for i, memory in enumerate(self._store.updates):
            self._bind(step, i, _pairs(memory, bound=True), UPDATE.format(i))
        self.bind_gradients(step, first=True)

    def _bind(self, graph: BoundGraph, i: int, pairs: Pairs, prefix: str = "") -> None:
        """Bind an update's inputs, and its outputs to the same memory."""
        taken = {argument.name for argument in graph.arguments()}
        graph.bind_input(f"{prefix}learning_rate", self._rates[i])
        graph.bind_input(f"{prefix}step", self._count)
        if self._scaled:
            graph.bind_input(f"{prefix}gradient_scale", self._factors[i])
        if prefix + NORM in taken:
            graph.bind_input(prefix + NORM, self._squares)
        for source, target, held in pairs:
            array = as_bits(held)
            if prefix + source in taken:
                graph.bind_input(prefix + source, array)
            if target is not None:
                graph.bind_output(prefix + target, array)


class ChunkedUpdate:
    """An update of long vectors in chunks, so that temporary tensors stay small."""

    def __init__(self, graph: BoundGraph, pairs: Pairs, most: int) -> None:
        self._graph, self._pairs, self._most = graph, pairs, most

    def run(self) -> None:
        for start in range(0, self._pairs[0][2].size, self._most):
            for source, target, vector in self._pairs:
                piece = as_bits(vector[start : start + self._most])
                self._graph.bind_input(source, piece)
                if target is not None:
                    self._graph.bind_output(target, piece)
            self._graph.run()


def _pairs(memory: UpdateMemory, bound: bool = False) -> Pairs:
    """The tensors of an update graph; `bound`: of the one over adjacent rows, with matrices."""
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


def as_bits(array: Array) -> Array:
    """A bfloat16 array as onnxruntime takes it: its bits, in the same memory."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _sum_of_squares(vectors: Sequence[Array]) -> float:
    """The sum of squares, without BLAS, whose threads would slow onnxruntime's."""
    return sum(map(squares_of, vectors))


def squares_of(vector: Array) -> float:
    """The sum of squares of a vector: in float64, but short rows in float32 where it has them.

    >>> squares_of(np.full(1000, 2, np.float32)), squares_of(np.full(1000, 1e30, np.float32)) > 9e62
    (4000.0, True)
    """
    total, start = 0.0, 0
    if vector.dtype == np.float32:
        rows = vector[: vector.size // _ROW * _ROW].reshape(-1, _ROW)
        found = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
        if _SMALLEST < found < math.inf:
            total, start = found, rows.size
    for at in range(start, vector.size, _CHUNK):
        piece = vector[at : at + _CHUNK].astype(np.float64)
        total += float(np.add.reduce(np.square(piece, out=piece)))
    return total
