"""Fake quantization: float tensors that are rounded to the integers that they will be stored as.

    grid = QuantizationGrid(low=-2, high=1, axis=0, block=32)
    y = fake_quantize(op, model, w, scale, grid)        # scale RoundToGrid(w / scale)

Rounding has no gradient of its own. `round_to_grid` is a call of `onward::RoundToGrid`, whose
gradient passes straight through where nothing was clipped (gradients/rules/quantized.py); engines
get the nodes of its body, Round and Clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import GraphOps
from onward.passes.composites import DOMAIN, FIRST_IR, VERSION, outline

NAME = "RoundToGrid"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class QuantizationGrid:
    """The integers of a quantized tensor, and which of its elements share a scale.

    Attributes:
        low, high: the smallest and the largest integer
        axis: the axis along which scales differ
        block: elements along the axis that share a scale; 0: one scale for each index of the axis
    """

    low: int
    high: int
    axis: int = 0
    block: int = 0

    def spread(self, scale: Array, shape: tuple[int, ...]) -> Array:
        """Scales or zero points (per tensor, axis or block) that broadcast over a shape.

        >>> grid = QuantizationGrid(low=-2, high=1, axis=0, block=2)
        >>> grid.spread(np.array([[1], [5]]), (3, 1)).ravel()
        array([1, 1, 5])
        """
        if scale.size == 1:
            return scale.reshape(())
        axis = self.axis % len(shape)
        if self.block:
            return np.repeat(scale, self.block, axis).take(range(shape[axis]), axis)
        return scale.reshape([-1 if place == axis else 1 for place in range(len(shape))])

    def to_integers(self, steps: Array) -> Array:
        """Steps as the integers that are stored."""
        return np.clip(np.rint(steps), self.low, self.high).astype(np.int32)


def round_to_grid(op: GraphOps, model: ir.Model, x: ir.Value, grid: QuantizationGrid) -> ir.Value:
    """clip(round(x), low, high); its gradient is the identity where nothing was clipped."""
    rounded = op.Round(x)
    y = op.Clip(rounded, float(grid.low), float(grid.high))
    nodes = [node for node in (rounded.producer(), y.producer()) if node is not None]
    model.opset_imports[DOMAIN] = VERSION
    model.ir_version = max(model.ir_version or FIRST_IR, FIRST_IR)
    [called] = outline(model.functions, model.opset_imports, nodes, NAME, [x], [y], {})
    return called


def fake_quantize(
    op: GraphOps, model: ir.Model, w: ir.Value, scale: ir.Value, grid: QuantizationGrid
) -> ir.Value:
    """s clip(round(w / s), low, high)"""
    assert w.shape is not None
    blocks, wide = to_blocks(op, w, scale, grid)
    steps = round_to_grid(op, model, op.Div(blocks, wide), grid)
    return from_blocks(op, op.Mul(steps, wide), tuple(w.shape.numpy()), grid)


def best_scales(weight: Array, grid: QuantizationGrid) -> Array:
    """The scales, of either sign, with the smallest squared error of the rounded weight."""
    axis = grid.axis % weight.ndim
    if grid.block:
        rest = -weight.shape[axis] % grid.block
        widths = [(0, rest if place == axis else 0) for place in range(weight.ndim)]
        padded = np.pad(weight, widths)
        count = padded.shape[axis] // grid.block
        shape = (*weight.shape[:axis], count, grid.block, *weight.shape[axis + 1 :])
        rows = np.moveaxis(padded.reshape(shape), axis + 1, 0).reshape(grid.block, -1)
        held: tuple[int, ...] = (*shape[: axis + 1], *shape[axis + 2 :])
    else:
        rows = np.moveaxis(weight, axis, -1).reshape(-1, weight.shape[axis])
        held = (weight.shape[axis],)
    tiny = float(np.finfo(np.float32).tiny) * 256
    largest = np.maximum(np.abs(rows).max(0), tiny) / max(-grid.low, grid.high)
    best, least = largest, np.full(largest.shape, np.inf)
    for share in np.linspace(1.1, 0.35, 24):
        for scale in (largest * share, -largest * share):
            steps = np.clip(np.rint(rows / scale), grid.low, grid.high)
            error = ((steps * scale - rows) ** 2).sum(0)
            better = error < least
            best, least = np.where(better, scale, best), np.where(better, error, least)
    return np.asarray(best.reshape(held), np.float32)


def to_blocks(
    op: GraphOps, x: ir.Value, scale: ir.Value, grid: QuantizationGrid
) -> tuple[ir.Value, ir.Value]:
    """x, and a scale that broadcasts over it: an axis in blocks becomes two axes."""
    assert x.shape is not None and scale.shape is not None
    sizes, held = tuple(x.shape.numpy()), tuple(scale.shape.numpy())
    if int(np.prod(held)) == 1:
        return x, op.Reshape(scale, np.zeros(0, np.int64)) if held else scale
    axis = grid.axis % len(sizes)
    if not grid.block:
        along = [-1 if place == axis else 1 for place in range(len(sizes))]
        return x, op.Reshape(scale, np.array(along, np.int64))
    count, rest = held[axis], sizes[axis] % grid.block
    if rest:  # the last block is smaller
        missing = np.array([0, grid.block - rest], np.int64)
        x = op.Pad(x, missing, None, np.array([axis], np.int64))
    split = [*sizes[:axis], count, grid.block, *sizes[axis + 1 :]]
    wide = [*held[: axis + 1], 1, *held[axis + 1 :]]
    return (
        op.Reshape(x, np.array(split, np.int64)),
        op.Reshape(scale, np.array(wide, np.int64)),
    )


def from_blocks(
    op: GraphOps, x: ir.Value, shape: tuple[int, ...], grid: QuantizationGrid
) -> ir.Value:
    """The reverse of `to_blocks`: a tensor of this shape."""
    assert x.shape is not None
    sizes = tuple(x.shape.numpy())
    if sizes == shape:
        return x
    axis = grid.axis % len(shape)
    padded = [*shape[:axis], sizes[axis] * sizes[axis + 1], *shape[axis + 1 :]]
    whole: ir.Value = op.Reshape(x, np.array(padded, np.int64))
    if padded[axis] == shape[axis]:
        return whole
    ends, axes = np.array([shape[axis]], np.int64), np.array([axis], np.int64)
    cut: ir.Value = op.Slice(whole, np.zeros(1, np.int64), ends, axes)
    return cut
