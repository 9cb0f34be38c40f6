"""Gradients of convolutions: dx, dw and db by one call of ATen, only those that are used."""

from __future__ import annotations

import functools

import onnx_ir as ir
import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.providers.torch.composite_calls import accepts_if
from onward.providers.torch.dtypes import Ints, Tensor, Unused
from onward.providers.torch.kernels import windows
from onward.providers.torch.kernels.composite_outputs import in_order, wanted_of
from onward.providers.torch.kernels.conv import channels_last, prefers_channels_last
from onward.providers.torch.kernels.half_precision import float32_on_cpu

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)


@composite("ConvGrad")
@float32_on_cpu
def conv_grad(
    x: Tensor,
    w: Tensor,
    b: Unused,
    y: Unused,
    dy: Tensor,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """dx = dy spread by w, dw[k] = Σ dy[o] x[o * stride + k * dilation - pad], db = Σ dy"""
    mask = wanted_of(wrt, wanted, 3)
    if not (x.numel() and w.numel() and dy.numel()):
        return in_order(_empty_gradients(x, w, dy), wrt)
    rank = x.dim() - 2
    none, ones = [0] * rank, [1] * rank
    padding, padding_around = pads[:rank] if pads else none, None
    if auto_pad != "NOTSET" or (pads and padding != pads[rank:]):
        at = windows.place_windows(
            x.shape[2:],
            w.shape[2:],
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
        )
        padding = at.begins
        if at.begins != at.ends:  # ATen pads both sides equally
            padding_around, padding = windows.padding_of(x, at), none
            x = F.pad(x, padding_around)
    if prefers_channels_last(x, group):
        dy, x, w = channels_last(dy), channels_last(x), channels_last(w)
    dx, dw, db = torch.ops.aten.convolution_backward(
        dy,
        x,
        w,
        [w.shape[0]] if mask[2] else None,
        strides or ones,
        padding,
        dilations or ones,
        False,
        none,
        group,
        mask,
    )
    if padding_around is not None and dx is not None:
        dx = F.pad(dx, [-n for n in padding_around])
    return in_order((dx, dw, db), wrt)


def _empty_gradients(x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a convolution without images, channels, pixels or filters."""
    db = dy.sum([axis for axis in range(dy.dim()) if axis != 1])
    return torch.zeros_like(x), torch.zeros_like(w), db


def _has_symmetric_pads(call: ir.Node) -> bool:
    """Whether a ConvTranspose has explicit pads, the same on both sides, as ATen requires."""
    pads = list(call.attributes.get_ints("pads") or ())
    if call.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    if call.attributes.get_ints("output_shape") is not None:
        return False
    x, half = call.inputs[0], len(pads) // 2
    if x is None or x.shape is None or pads[:half] != pads[half:]:
        return False
    ones = [1] * (len(x.shape) - 2)
    more = list(call.attributes.get_ints("output_padding") or [0] * len(ones))
    steps = list(call.attributes.get_ints("strides") or ones)
    holes = list(call.attributes.get_ints("dilations") or ones)
    return all(n < max(s, d) for n, s, d in zip(more, steps, holes))


@composite("ConvTransposeGrad")
@accepts_if(_has_symmetric_pads)
@float32_on_cpu
def conv_transpose_grad(
    x: Tensor,
    w: Tensor,
    b: Unused,
    y: Unused,
    dy: Tensor,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """dx = the convolution of dy with w, dw = that convolution's for (dy, x), db = Σ dy"""
    mask = wanted_of(wrt, wanted, 3)
    if not (x.numel() and w.numel() and dy.numel()):
        return in_order(_empty_gradients(x, w, dy), wrt)
    rank = x.dim() - 2
    none, ones = [0] * rank, [1] * rank
    gradients = torch.ops.aten.convolution_backward(
        dy,
        x,
        w,
        [dy.shape[1]] if mask[2] else None,
        strides or ones,
        pads[:rank] if pads else none,
        dilations or ones,
        True,
        output_padding or none,
        group,
        mask,
    )
    return in_order(gradients, wrt)
