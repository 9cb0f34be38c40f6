"""Fit the integers and the scales of each layer to the layer's own float output.

    min |X W - X W'|^2,  W' = scale (integers - zero)

With H = X^T X there is a closed form for one integer of each output while all others stay, and for
one scale; sweeps over them lower the error in every step. X is what the layer reads in the
quantized model. It is measured in the graph, and only H is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.learned_rounding.layer_matrices import (
    LayerMatrix,
    matrices_of,
    read_rows,
    write_matrix,
)
from onward.compress.learned_rounding.quantized_weights import find_weights, matching_floats
from onward.passes.fake_quantization import Array
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_ROWS = 512  # that are measured
_MEASURING = 0.5  # of the time for layers, at most, to measure
_MEMORY = 256 << 20  # bytes of H at a time
_SWEEPS = 2
_LANES = 64  # inputs whose changes are applied to the others at once
_DAMPING = 0.01  # share of the mean of H's diagonal: a layer's weights stay near the float ones


def fit_layers(
    quantized: ir.Model,
    original: ir.Model,
    data: Calibration,
    *,
    seconds: float | None = None,
    progress: Callable[[str, float, float | None], None],
    clock: Callable[[], float] = time.monotonic,
) -> ir.Model:
    """A copy of a quantized model whose layers are nearer to the float ones.

    Layers are MatMul, Gemm and Conv (not grouped) whose float weight is found in the original;
    others stay as they are. After `seconds`, the remaining layers stay, too.
    """
    model = quantized.clone()
    weights = find_weights(model)
    layers = matrices_of(weights, matching_floats(weights, original))
    start, done = clock(), 0

    def is_late() -> bool:
        return seconds is not None and clock() - start > seconds * _MEASURING

    for part in _parts(layers):
        if seconds is not None and clock() - start > seconds:
            break
        progress("measure layers", done, len(layers))
        measured = _measure(model, part, data, is_late)
        for layer in part:
            if seconds is not None and clock() - start > seconds:
                break
            progress("fit layers", done, len(layers))
            _fit(layer, measured[layer.data_name])
            done += 1
    return model


def _parts(layers: Sequence[LayerMatrix]) -> Iterator[list[LayerMatrix]]:
    """Layers in the order of the graph, as many as H fits in memory for."""
    part: list[LayerMatrix] = []
    size = 0
    for layer in layers:
        needed = 4 * layer.inputs**2
        if part and size + needed > _MEMORY:
            yield part
            part, size = [], 0
        part.append(layer)
        size += needed
    if part:
        yield part


def _measure(
    model: ir.Model,
    layers: Sequence[LayerMatrix],
    data: Calibration,
    is_late: Callable[[], bool],
) -> Mapping[str, Array]:
    """H = X^T X of each layer's data."""
    watched = model.clone()
    made = {str(value.name): value for node in watched.graph for value in node.outputs}
    by_data = {layer.data_name: layer for layer in layers}
    names = [name for name in by_data if name in made]
    for name in names:
        made[name].type = made[name].type or ir.TensorType(ir.DataType.FLOAT)
        if not made[name].is_graph_output():
            watched.graph.outputs.append(made[name])
    session = InferenceSession(watched, SessionOptions(log_severity_level=4))
    found = {n: np.zeros((x.inputs, x.inputs), np.float32) for n, x in by_data.items()}
    rows_read = 0
    for feeds in data.batches():
        if rows_read >= _ROWS or (rows_read and is_late()):
            break
        rows_read += max((len(feed) for feed in feeds.values() if np.ndim(feed)), default=1)
        outputs = dict(zip(names, session.run(names, feeds))) if names else {}
        for name, layer in by_data.items():
            rows = read_rows(layer, outputs[name] if name in outputs else feeds[name])
            found[name] += rows.T @ rows
    return found


@dataclass
class _State:
    """A layer as matrices (inputs, outputs): its integers, scales, and h times its error."""

    h: Array
    steps: Array  # integers minus zero points
    scale: Array
    gradient: Array  # h (w - w')


def _fit(layer: LayerMatrix, h: Array) -> None:
    """Sweep over the integers and the scales of a layer, and write them."""
    mean = float(np.mean(np.diag(h)))
    if not np.isfinite(h).all() or mean <= 0:
        return
    h = h + _DAMPING * mean * np.eye(len(h), dtype=np.float32)
    steps = layer.integers - layer.zero
    state = _State(h, steps, layer.scale, h @ (layer.weight - steps * layer.scale))
    for _ in range(_SWEEPS):
        _sweep_integers(state, layer)
        _sweep_scales(state, layer)
    if np.isfinite(state.scale).all():
        write_matrix(layer, state.steps + layer.zero, state.scale)


def _sweep_integers(state: _State, layer: LayerMatrix) -> None:
    """Each integer in turn, of all outputs at once: the best one while the others stay."""
    low, high = layer.low - layer.zero, layer.high - layer.zero
    for first in range(0, layer.inputs, _LANES):
        lanes = slice(first, min(first + _LANES, layer.inputs))
        own, gradient = state.h[lanes, lanes], state.gradient[lanes]
        change = np.zeros_like(gradient)
        for place, row in enumerate(range(lanes.start, lanes.stop)):
            scale, steps = state.scale[row], state.steps[row]
            slope = gradient[place] - own[place] @ change
            ideal = steps + slope / own[place, place] / scale
            best = np.clip(np.rint(ideal), low[row], high[row])
            change[place] = (best - steps) * scale
            state.steps[row] = best
        state.gradient -= state.h[:, lanes] @ change


def _sweep_scales(state: _State, layer: LayerMatrix) -> None:
    """Each scale in turn, of all outputs at once: least squares while the others stay."""
    for rows in layer.shared_rows:
        steps = state.steps[rows]
        slope = (steps * state.gradient[rows]).sum(0)
        curvature = (steps * (state.h[rows, rows] @ steps)).sum(0)
        change = np.where(curvature > 0, slope / np.where(curvature > 0, curvature, 1), 0)
        state.scale[rows] += change
        state.gradient -= state.h[:, rows] @ (steps * change)
