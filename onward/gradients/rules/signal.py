"""Gradients of Fourier transforms: each is linear, and its transpose is another one.

Complex numbers are pairs (real, imaginary) along the last axis, real ones have it of size 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.gradients.rule import GradientTable
from onward.gradients.rules.windows import with_rank
from onward.passes.value_facts import attribute, input_of, ints

gradient = GradientTable()


@gradient("DFT")
def dft(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """y = F x, or conj(F) x / n: dx = conj(F) dy, or F dy / n; of a real x, the real part of it

    F is symmetric. The gradient of padding is dropped, that of elements that were cut is 0.
    """
    x = node.inputs[0]
    assert x is not None
    axis, inverse = _axis(node, x), attribute(node, "inverse")
    if axis is None:
        return _along_fed_axis(op, node, dy)
    length = found = _length(op, node, x, axis)
    if inverse and attribute(node, "onesided"):
        dx, found = _half_spectrum(op, dy, length, axis)
    else:
        if attribute(node, "onesided"):
            dy = _whole(op, dy, length, axis)
        dx = op.DFT(dy, None, axis, inverse=1 - inverse, onesided=0)
    scaled = op.Div if inverse else op.Mul
    dx = scaled(dx, op.number(length, x))
    if op.size(x, -1) != 2:
        dx = op.Slice(dx, [0], op.shape(op.size(x, -1)), [-1])
    return _fitted(op, dx, found, op.size(x, axis), axis)


def _axis(node: ir.Node, x: ir.Value) -> int | None:
    """The axis as a non-negative number; None: it is known only at run time."""
    given = input_of(node, 2)
    if given is None:
        return rank(x) - 2
    known = ints(given)
    return None if known is None else known[0] % rank(x)


@formula
def _along_fed_axis(op: GradientOps, node: ir.Node) -> Any:
    """x as (before, length, after, parts), transformed along its second axis"""
    x, length, axis = node.inputs
    assert x is not None
    places, sizes = op.arange(rank(x) - 1), op.Slice(op.Shape(x), [0], [-1])
    axis = op.Reshape(axis, [1])
    axis = op.Where(op.Less(axis, 0), op.Add(axis, rank(x)), axis)
    here, before = op.Equal(places, axis), op.Less(places, axis)
    ahead, along, behind = (
        op.ReduceProd(op.Where(mask, sizes, 1), keepdims=1)
        for mask in (before, here, op.Not(op.Or(before, here)))
    )
    parts = op.shape(op.size(x, -1))
    four = op.Reshape(x, op.Concat(ahead, along, behind, parts, axis=0))
    flags = {name: attribute(node, name) for name in ("inverse", "onesided")}
    y = op.DFT(four, length, 1, **flags)
    result = op.shape(op.size(y, 1))
    whole = op.Concat(op.Where(here, result, sizes), op.shape(op.size(y, -1)), axis=0)
    return op.Reshape(y, whole)


def _length(op: GradientOps, node: ir.Node, x: ir.Value, axis: int) -> Size:
    """The length of the transform: as given, or that of the signal."""
    if input_of(node, 1) is not None:
        return _size(op, node.inputs[1])
    size = op.size(x, axis)
    if not (attribute(node, "inverse") and attribute(node, "onesided")):
        return size
    return 2 * (size - 1) if isinstance(size, int) else op.Mul(op.Sub(size, 1), 2)


def _size(op: GradientOps, given: ir.Value | None) -> Size:
    """A scalar input as a size."""
    known = ints(given)
    return known[0] if known else op.Reshape(op.Cast(given, to=ir.DataType.INT64), [1])


def _scalar(op: GradientOps, size: Size) -> ir.Value:
    """A size as a scalar input."""
    return op.constant(np.array(size)) if isinstance(size, int) else op.Squeeze(size, [0])


def _half_spectrum(op: GradientOps, dy: ir.Value, length: Size, axis: int) -> tuple[ir.Value, Size]:
    """Of a real signal from half a spectrum: all frequencies but the first and the middle one are
    there twice, once as their own conjugate. With it, how many there are.
    """
    count = _half(op, length)
    if isinstance(length, int):
        spectrum = op.DFT(dy, None, axis, inverse=0, onesided=1)
    else:  # see _whole
        spectrum = op.DFT(dy, None, axis, inverse=0, onesided=0)
        spectrum = op.Slice(spectrum, [0], count, [axis])
    places = op.arange(count)
    once = op.Or(op.Equal(places, 0), op.Equal(op.Mul(places, 2), op.shape(length)))
    times = op.Where(once, op.number_like(1.0, dy), op.number_like(2.0, dy))
    times = op.Reshape(times, [-1, *[1] * (rank(dy) - 1 - axis)])
    return op.Mul(spectrum, times), count


def _whole(op: GradientOps, dy: ir.Value, length: Size, axis: int) -> ir.Value:
    """Half a spectrum, padded with zeros.

    Not by DFT's input `dft_length`: if that is not a constant, onnx infers the input's size for the
    output, and onnxruntime then reuses buffers that are too small.
    """
    return _fitted(op, dy, _half(op, length), length, axis)


def _half(op: GradientOps, length: Size) -> Size:
    """The number of frequencies of a real signal."""
    return length // 2 + 1 if isinstance(length, int) else op.Add(op.Div(length, 2), 1)


def _fitted(op: GradientOps, dx: ir.Value, found: Size, wanted: Size, axis: int) -> ir.Value:
    """dx padded with zeros or cut to a size."""
    if found is wanted or found == wanted:
        return dx
    if isinstance(found, int) and isinstance(wanted, int):
        more: Size = wanted - found
    else:
        more = op.Sub(op.shape(wanted), op.shape(found))
    return op.Pad(dx, op.shape(0, more), None, [axis], mode="constant")


@gradient("STFT")
@formula
def stft(op: GradientOps, node: ir.Node) -> Any:
    """y[t] = F (window x[t step : t step + length])"""
    x, step = node.inputs[:2]
    window, length = input_of(node, 2), input_of(node, 3)
    assert x is not None
    count = op.size(with_rank(node.outputs[0], 4), 1)
    if length is not None:
        taps = _size(op, length)
    else:
        taps = op.size(x, 1) if window is None else op.size(window, 0)
    x = op.Unsqueeze(x, [-1]) if rank(x) == 2 else x
    starts = op.Mul(op.arange(count), op.shape(_size(op, step)))
    frames = op.Gather(x, op.Add(op.Unsqueeze(starts, [1]), op.arange(taps)), axis=1)
    if window is not None:
        frames = op.Mul(frames, op.Unsqueeze(window, [1]))  # (batch, frames, taps, parts)
    half = attribute(node, "onesided")
    if half and op.size(x, -1) == 1:
        return op.DFT(frames, _scalar(op, taps), 2, inverse=0, onesided=1)
    spectrum = op.DFT(frames, _scalar(op, taps), 2, inverse=0, onesided=0)
    return op.Slice(spectrum, [0], op.shape(_half(op, taps)), [2]) if half else spectrum
