"""The gradient of pooling by the largest element, from ATen's own backward kernel."""

from __future__ import annotations

import functools

import onnx_ir as ir
import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.passes.value_facts import attribute, is_float, rank
from onward.providers.torch.composite_calls import accepts_if
from onward.providers.torch.dtypes import Ints, Tensor, Unused

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)
aten = torch.ops.aten

_AXES = 2  # of the windows


def _has_kernel(call: ir.Node) -> bool:
    """Whether ATen has the pooling: over images, with the same padding on both sides."""
    x, sizes = call.inputs[0], attribute(call, "kernel_shape", ())
    if x is None or not is_float(x) or rank(x) != 2 + _AXES or len(sizes) != _AXES:
        return False
    if attribute(call, "storage_order", 0) or attribute(call, "auto_pad", "NOTSET") != "NOTSET":
        return False
    pads = list(attribute(call, "pads", None) or [0] * 2 * _AXES)
    begins, ends = pads[:_AXES], pads[_AXES:]
    return begins == ends and all(2 * begin <= size for begin, size in zip(begins, sizes))


@composite("MaxPoolGrad")
@accepts_if(_has_kernel)
def max_pool_grad(
    x: Tensor,
    y: Unused,
    indices: Unused,
    dy: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    storage_order: int,
    strides: Ints | None = None,
    wrt: Ints,
) -> tuple[Tensor]:
    """dx[i] = Σ dy of the windows whose largest element is i, the first of equal ones"""
    if not (x.numel() and dy.numel()):
        return (torch.zeros_like(x),)
    ones = [1] * _AXES
    padding = (pads or [0] * _AXES)[:_AXES]
    given = (kernel_shape, strides or ones, padding, dilations or ones, bool(ceil_mode))
    # found again: ATen counts in planes, ONNX in the whole tensor, in eight bytes for each
    _, places = aten.max_pool2d_with_indices(x, *given)
    return (aten.max_pool2d_with_indices_backward(dy, x, *given, places),)
