"""Measure values of a model while it runs on data: reductions in the graph, small outputs.

Each pass adds nodes to a copy of the model, so that the engine reduces a value as soon as it is
computed: no more than a few numbers of each value leave it, and memory does not grow with the
number of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.errors import DataError
from onward.graph.graph_ops import GraphOps, extend, rank
from onward.passes.drop_unused import drop_unused
from onward.passes.value_facts import Array
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

BINS = 2048
_THINNED = 1 << 16  # numbers of a batch that a histogram counts, or a few times as many
_SAMPLE_BATCHES = 8  # batches of which rows are kept
_SAMPLE_ROWS = 64  # rows of a batch, up to twice as many

Reduce = Callable[[GraphOps, ir.Value], ir.Value]


@dataclass(frozen=True)
class ValueHistogram:
    """How often a value's numbers lie in each of equal bins between its bounds."""

    low: float
    high: float
    counts: Array


@dataclass(frozen=True)
class Channels:
    """The bounds of each channel of a value, and a few hundred rows (rows, channels) of it."""

    low: Array
    high: Array
    rows: Array


def measure_bounds(
    model: ir.Model, values: Sequence[str], data: Calibration
) -> dict[str, tuple[float, float]]:
    """The least and the greatest number of each value over all batches."""
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    reductions: dict[str, Reduce] = {
        "low": lambda op, x: op.ReduceMin(x, keepdims=0),
        "high": lambda op, x: op.ReduceMax(x, keepdims=0),
    }
    for found in _reduced(model, values, reductions, data):
        for (kind, name), number in found.items():
            if not np.isfinite(number):
                continue
            if kind == "low":
                low[name] = min(low.get(name, np.inf), float(number))
            else:
                high[name] = max(high.get(name, -np.inf), float(number))
    return {name: (low[name], high[name]) for name in values if name in low and name in high}


def measure_histograms(
    model: ir.Model, bounds: Mapping[str, tuple[float, float]], data: Calibration
) -> dict[str, ValueHistogram]:
    """How the numbers of each value are distributed between its bounds."""
    counts: dict[str, Array] = {}

    def count(op: GraphOps, x: ir.Value) -> ir.Value:
        low, high = bounds[str(x.name)]
        x = _thinned(op, x)
        places = op.Mul(op.Sub(x, np.float32(low)), np.float32(BINS / max(high - low, 1e-30)))
        places = op.Clip(op.Floor(places), np.float32(0), np.float32(BINS - 1))
        flat = op.Cast(places, to=ir.DataType.INT64)
        ones = op.Expand(np.int32(1), op.Shape(flat))
        zeros = op.constant(np.zeros(BINS, np.int32))
        return op.ScatterElements(zeros, flat, ones, axis=0, reduction="add")  # type: ignore[no-any-return]

    for found in _reduced(model, list(bounds), {"counts": count}, data):
        for (_, name), array in found.items():
            counts[name] = counts[name] + array if name in counts else array.astype(np.int64)
    return {name: ValueHistogram(*bounds[name], counts[name]) for name in counts}


def _thinned(op: GraphOps, x: ir.Value) -> ir.Value:
    """At most a few hundred thousand numbers of a value, at equal distances.

    The distance is 6 k + 1, so that it has no factor in common with most sizes of axes.
    """
    flat = op.Reshape(x, [-1])
    count = op.Shape(flat)
    step = op.Add(op.Mul(op.Div(count, np.array([6 * _THINNED])), np.array([6])), np.array([1]))
    return op.Slice(flat, np.array([0]), count, np.array([0]), step)  # type: ignore[no-any-return]


def measure_channels(
    model: ir.Model, axes: Mapping[str, int], data: Calibration
) -> dict[str, Channels]:
    """The bounds and a sample of values' channels; `axes` says which axis of a value these are."""
    low: dict[str, Array] = {}
    high: dict[str, Array] = {}
    rows: dict[str, list[Array]] = {}
    reductions = {
        "low": _reduce_others("ReduceMin", axes),
        "high": _reduce_others("ReduceMax", axes),
        "rows": lambda op, x: _sample(op, x, axes[str(x.name)]),
    }
    for number, found in enumerate(_reduced(model, list(axes), reductions, data)):
        for (kind, name), array in found.items():
            if kind == "low":
                low[name] = np.minimum(low.get(name, array), array)
            elif kind == "high":
                high[name] = np.maximum(high.get(name, array), array)
            elif number < _SAMPLE_BATCHES:
                rows.setdefault(name, []).append(array[: 2 * _SAMPLE_ROWS])
    return {name: Channels(low[name], high[name], np.concatenate(rows[name])) for name in low}


def _reduce_others(operator: str, axes: Mapping[str, int]) -> Reduce:
    """A reduction over all axes but that of the channels."""

    def add(op: GraphOps, x: ir.Value) -> ir.Value:
        axis = axes[str(x.name)] % rank(x)
        others = np.array([each for each in range(rank(x)) if each != axis])
        return op.node(operator, [x, others], {"keepdims": 0})  # type: ignore[return-value]

    return add


def _sample(op: GraphOps, x: ir.Value, axis: int) -> ir.Value:
    """A few rows (rows, channels) of a value, at equal distances."""
    axis %= rank(x)
    if axis != rank(x) - 1:
        order = [each for each in range(rank(x)) if each != axis]
        x = op.Transpose(x, perm=[*order, axis])
    flat = op.Reshape(x, op.shape(-1, op.size(x, -1)))
    count = op.Shape(flat, start=0, end=1)
    step = op.Max(op.Div(count, np.array([_SAMPLE_ROWS])), np.array([1]))
    return op.Slice(flat, np.array([0]), count, np.array([0]), step)  # type: ignore[no-any-return]


def _reduced(
    model: ir.Model,
    values: Sequence[str],
    reductions: Mapping[str, Reduce],
    data: Calibration,
) -> Iterator[dict[tuple[str, str], Any]]:
    """The reductions of values for each batch."""
    if not values:
        return
    copy = model.clone()
    by_name = named_values(copy.graph)
    op = extend(copy)
    outputs: dict[str, tuple[str, str]] = {}
    results: list[ir.Value] = []
    for value in values:
        for kind, reduce in reductions.items():
            result = reduce(op, by_name[value])
            outputs[str(result.name)] = (kind, value)
            results.append(result)
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(results)
    session = open_session(drop_unused(copy))
    used = {each.name for each in session.get_inputs()}
    names = list(outputs)
    for number, feeds in enumerate(data.batches()):
        given = {name: feed for name, feed in feeds.items() if name in used}
        arrays = session.run(names, given)
        _check_finite(arrays, [outputs[name] for name in names], number)
        yield dict(zip(outputs.values(), arrays, strict=True))


def _check_finite(arrays: Iterable[Array], keys: Iterable[tuple[str, str]], number: int) -> None:
    for array, (_, name) in zip(arrays, keys, strict=True):
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise DataError(
                f"the model computes NaN in {name!r} for batch {number} of the data\n"
                "remove these rows, or repair the model: no range can be measured with them"
            )


def open_session(model: ir.Model) -> InferenceSession:
    """A session on the CPU for measurements."""
    return InferenceSession(model, SessionOptions(log_severity_level=4), ["CPUExecutionProvider"])


def named_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Inputs, initializers and results of the main graph by name."""
    found = {str(value.name): value for value in graph.inputs}
    found.update(graph.initializers)
    for node in graph:
        found.update((str(value.name), value) for value in node.outputs if value.name)
    return found
