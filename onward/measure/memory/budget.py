"""Budget: a run's memory, held against its limit before anything is allocated.

An engine without a limit of its own (torch on a CPU, OpenVINO, the reference) is asked for nothing
that the graph alone shows to be too much: its weights, and the values that must live at once.
Scratch inside its kernels, and values whose size only a run can tell, are not counted.
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
VIEWS = MemoryRules(  # as torch: what only looks at memory differently
    dict.fromkeys((*SAME_ELEMENTS, *_STRIDED), _FIRST)
)
_NEW = {"Concat", "Conv", "ConvTranspose", "Gather", "Gemm", "MatMul", "Pad", "Resize", "Tile"}
_REMEMBERED = 64  # sets of shapes
_POINTER = 8  # bytes: what a text takes of a tensor, wherever its letters lie

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Estimate:
    """The values of a graph over time."""

    weights: int
    lives: Lifetimes
    unknown: list[str]  # values whose size nobody knows before a run


def follow(model: ir.Model, shapes: Mapping[str, Sequence[int]], rules: MemoryRules) -> Estimate:
    """The values of a prepared model over time, its inputs of these shapes."""
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
    return Estimate(weight_bytes(model), lives, sorted(unknown))


class Budget:
    """A prepared model and the bytes that it may take."""

    def __init__(self, model: ir.Model, limit: int) -> None:
        self._model, self._limit = model, limit
        self._known: dict[Shapes, Estimate] = {}

    def check(self, feeds: Mapping[str, Any]) -> None:
        """Refuse a run that needs more than the limit."""
        arrays = {n: feed for n, feed in feeds.items() if not isinstance(feed, (list, tuple))}
        shapes = tuple(sorted((n, tuple(np.shape(feed))) for n, feed in arrays.items()))
        if shapes not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[shapes] = follow(self._model, dict(shapes), VIEWS)
        _refuse("the run", self._known[shapes], self._limit, "feed smaller batches")


def check_opening(model: ir.Model, limit: int) -> None:
    """Refuse a model of fixed sizes whose weights and values cannot fit, whoever runs it.

    Everything that an engine might write in place or fuse away counts as if it did.
    """
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    if not all(value.shape is not None and value.shape.is_static() for value in inputs):
        return
    operators = {spelled(node) for node in model.graph} - _NEW
    rules = MemoryRules(VIEWS.aliases, dict.fromkeys(operators, ((0, 0), (1, 0), (2, 0))))
    _refuse("the model", follow(model, {}, rules), limit, "use a smaller model")


def _refuse(what: str, needs: Estimate, limit: int, advice: str) -> None:
    live = needs.lives.peak
    if needs.weights + live > limit:
        raise MemoryLimitExceeded(
            f"{what} needs at least {needs.weights + live:,} bytes ({needs.weights:,} of weights, "
            f"{live:,} of values at once), more than its memory limit of {limit:,} bytes\n"
            f"raise SessionOptions.memory_limit, or {advice}"
        )
