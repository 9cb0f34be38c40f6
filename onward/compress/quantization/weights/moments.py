"""Second moments of the data that layers multiply: X^T X, summed over the batches in the graph.

for moments in measure_moments(model, values, calibration):      # some of the values at a time
    moments["x"]                                                 # (inputs, inputs)

The memory does not depend on the number of batches: a run returns sums, not data. Rows with NaN,
infinity, or numbers whose squares float32 cannot hold are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.weights.blocks import Array
from onward.graph.graph_ops import GraphOps, extend
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_LARGEST_SUMS = 512 << 20  # bytes of moments that are measured at a time
_LARGEST_ROW = 1e16  # the sum of the sizes of a row's numbers


def measure_moments(
    model: ir.Model, sizes: dict[str, int], calibration: Calibration
) -> Iterator[dict[str, Array]]:
    """The moments of values by name, as many at a time as fit into memory.

    Args:
        model: the model
        sizes: the values of the main graph, and the size of their last axis
        calibration: the batches
    """
    names = list(sizes)
    while names:
        taken, total = list[str](), 0
        while names and (not taken or total + 4 * sizes[names[0]] ** 2 <= _LARGEST_SUMS):
            total += 4 * sizes[names[0]] ** 2
            taken.append(names.pop(0))
        yield _measure(model, {name: sizes[name] for name in taken}, calibration, _moments)


def fits_at_once(sizes: Iterable[int]) -> bool:
    """Whether the moments of values of these sizes are measured in one pass."""
    return sum(4 * size**2 for size in sizes) <= _LARGEST_SUMS


def measure_squares(
    model: ir.Model, sizes: dict[str, int], calibration: Calibration
) -> dict[str, Array]:
    """The sum of squares of each input: the diagonals of the moments."""
    return _measure(model, sizes, calibration, _squares) if sizes else {}


def _moments(op: GraphOps, x: ir.Value) -> ir.Value:
    """X^T X"""
    product: ir.Value = op.MatMul(op.Transpose(x, perm=[1, 0]), x)
    return product


def _squares(op: GraphOps, x: ir.Value) -> ir.Value:
    """sum(x * x)"""
    total: ir.Value = op.ReduceSum(op.Mul(x, x), np.array([0]), keepdims=0)
    return total


def _without_odd_rows(op: GraphOps, x: ir.Value) -> ir.Value:
    """Rows that no sum can have become 0: a comparison with NaN is False."""
    sizes = op.ReduceSum(op.Abs(x), np.array([1]), keepdims=1)
    rows: ir.Value = op.Where(op.Less(sizes, np.float32(_LARGEST_ROW)), x, np.float32(0))
    return rows


def _measure(
    model: ir.Model,
    sizes: dict[str, int],
    calibration: Calibration,
    reduce: Callable[[GraphOps, ir.Value], ir.Value],
) -> dict[str, Array]:
    watched = model.clone()
    op = extend(watched)
    values = {
        str(value.name): value
        for value in (*watched.graph.inputs, *(v for n in watched.graph for v in n.outputs))
    }
    watched.graph.outputs.clear()
    names: list[str] = []
    for name, size in sizes.items():
        x = op.Cast(op.Reshape(values[name], np.array([-1, size])), to=ir.DataType.FLOAT)
        result = reduce(op, _without_odd_rows(op, x))
        watched.graph.outputs.append(result)
        names.append(str(result.name))
    session = InferenceSession(watched, SessionOptions(log_severity_level=4))
    sums: list[Array] = []
    for feeds in calibration.batches():
        results: Sequence[Array] = session.run(names, feeds)
        if not sums:
            sums = [np.array(each) for each in results]
            continue
        for total, each in zip(sums, results, strict=True):
            total += each
    return dict(zip(sizes, sums, strict=True))
