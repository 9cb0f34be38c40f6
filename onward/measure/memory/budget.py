"""Check the memory of a run against its limit before the engine allocates anything.

For engines that have no limit (torch on a CPU, OpenVINO, the reference): weights and the values
that are alive at once are counted from the graph. Buffers inside kernels, and values whose size
only a run shows, are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import MemoryLimitExceeded
from onward.graph.files import weight_bytes
from onward.graph.lifetimes import Lifetimes, MemoryRules, Pairs, lifetimes, spelled
from onward.graph.operators import VIEWS as SAME_ELEMENTS
from onward.graph.shapes.infer import with_input_shapes

_FIRST: Pairs = ((0, 0),)
_STRIDED = ("Dropout", "Expand", "Slice", "Transpose")
VIEWS = MemoryRules(  # as in torch: outputs that are views of their input
    dict.fromkeys((*SAME_ELEMENTS, *_STRIDED), _FIRST)
)
_ALLOCATES = {
    "Concat",
    "Conv",
    "ConvTranspose",
    "Gather",
    "Gemm",
    "MatMul",
    "Pad",
    "Resize",
    "Tile",
}
_CACHED = 64  # sets of shapes
_POINTER = 8  # bytes that a string takes in its tensor; its characters are elsewhere

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class MemoryEstimate:
    """The bytes of a graph's weights, and the lifetimes of its values."""

    weights: int
    lives: Lifetimes
    unknown: list[str]  # values whose size only a run shows


def estimate_memory(
    model: ir.Model, shapes: Mapping[str, Sequence[int]], rules: MemoryRules
) -> MemoryEstimate:
    """Weights and lifetimes of a prepared model whose inputs have these shapes."""
    model = with_input_shapes(model, shapes)
    unknown: set[str] = set()

    def nbytes(value: ir.Value) -> int:
        if value.shape is None or not value.shape.is_static() or value.dtype is None:
            unknown.add(str(value.name))
            return 0
        each = _POINTER if value.dtype == ir.DataType.STRING else value.dtype.itemsize
        total: float = math.prod(value.shape.numpy()) * each
        return math.ceil(total)

    lives = lifetimes(model.graph, rules, nbytes)
    return MemoryEstimate(weight_bytes(model), lives, sorted(unknown))


class MemoryBudget:
    """A prepared model, and the memory limit of its runs."""

    def __init__(self, model: ir.Model, limit: int) -> None:
        self._model, self._limit = model, limit
        self._known: dict[Shapes, MemoryEstimate] = {}

    def check(self, feeds: Mapping[str, Any]) -> None:
        """Refuse a run that needs more than the limit."""
        arrays = {n: feed for n, feed in feeds.items() if not isinstance(feed, (list, tuple))}
        shapes = tuple(sorted((n, tuple(np.shape(feed))) for n, feed in arrays.items()))
        if shapes not in self._known:
            if len(self._known) >= _CACHED:
                self._known.clear()
            self._known[shapes] = estimate_memory(self._model, dict(shapes), VIEWS)
        _refuse("the run", self._known[shapes], self._limit, "feed smaller batches")


def check_opening(model: ir.Model, limit: int) -> None:
    """Refuse a model of fixed sizes that exceeds the limit on every engine.

    Values that an engine might write in place or fuse away are counted as if it did.
    """
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    if not all(value.shape is not None and value.shape.is_static() for value in inputs):
        return
    operators = {spelled(node) for node in model.graph} - _ALLOCATES
    rules = MemoryRules(VIEWS.aliases, dict.fromkeys(operators, ((0, 0), (1, 0), (2, 0))))
    _refuse("the model", estimate_memory(model, {}, rules), limit, "use a smaller model")


def _refuse(what: str, needs: MemoryEstimate, limit: int, advice: str) -> None:
    live = needs.lives.peak
    if needs.weights + live > limit:
        raise MemoryLimitExceeded(
            f"{what} needs at least {needs.weights + live:,} bytes ({needs.weights:,} of weights, "
            f"{live:,} of values at once), more than its memory limit of {limit:,} bytes\n"
            f"raise SessionOptions.memory_limit, or {advice}"
        )
