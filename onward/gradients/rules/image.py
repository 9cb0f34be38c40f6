"""Gradient of Col2Im."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.rules.linear import equal_places
from onward.gradients.rules.shape import elements
from onward.passes.value_facts import attribute

gradient = GradientTable()


@gradient("Col2Im")
def col2im(op: GradientOps, node: ir.Node, dy: ir.Value) -> Any:
    """dx = the columns of dy: what each place in each block reads, as one-hot kernels pick it"""
    x, image, block = node.inputs
    assert x is not None and image is not None and block is not None
    count = op.size(image, 0)
    if not isinstance(count, int):
        raise ValueError("the number of axes of the image must be known")
    kernel, sizes = elements(op, block, count), elements(op, image, count)
    taps = op.product(*kernel)
    picks = op.cast_like(equal_places(op, taps), x)
    picks = op.Reshape(picks, op.shape(taps, 1, *kernel))
    geometry = {name: attribute(node, name) for name in ("strides", "pads", "dilations")}
    given = {name: list(value) for name, value in geometry.items() if value}
    planes = op.Reshape(dy, op.shape(-1, 1, *sizes))
    return op.reshape_as(op.Conv(planes, picks, **given), x)
