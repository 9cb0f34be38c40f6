"""Gradients of normalisations, from ATen's own backward kernels."""

from __future__ import annotations

import functools
from math import prod

import onnx_ir as ir
import torch

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.providers.torch.composite_calls import accepts_if
from onward.providers.torch.dtypes import Ints, Tensor, Unused
from onward.providers.torch.kernels.composite_outputs import (
    are_absent,
    in_order,
    requested_gradients,
    sizes_of,
    wanted_of,
)
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.kernels.memory import computed_once

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)
aten = torch.ops.aten


def _at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in its wider type."""
    return x.float() if x.dtype.itemsize == 2 else x


def _has_whole_scale(call: ir.Node) -> bool:
    """Whether scale and bias have one number for each normalised element."""
    x, scale = call.inputs[:2]
    axis = call.attributes.get_int("axis", -1)
    if x is None or x.shape is None or scale is None or scale.dtype != x.dtype:
        return False
    normalized = list(x.shape)[axis:]
    asked = (value for i, value in requested_gradients(call).items() if i > 0)
    return all(sizes_of(value) == normalized for value in (scale, *asked))


# -- layer ---------------------------------------------------------------------------------------


@composite("LayerNormalizationGrad")
@accepts_if(lambda call: are_absent(call, 7, 8) and _has_whole_scale(call))
@float32_on_cpu
def layer_normalization_grad(
    x: Tensor,
    scale: Tensor,
    b: Unused,
    y: Unused,
    mean: Tensor | None,
    inv: Tensor | None,
    dy: Tensor,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """dx = inv (g - mean(g) - xhat mean(g xhat)), g = dy scale; dscale = Σ dy xhat, db = Σ dy"""
    shape = x.shape[axis:]
    if mean is None or inv is None:  # ONNX stores the statistics of float64 in float32
        _, mean, inv = torch.native_layer_norm(x, shape, None, None, epsilon)
    gradients = aten.native_layer_norm_backward(
        dy.contiguous(),
        x.contiguous(),
        shape,
        mean,
        inv,
        scale,
        scale,  # for the bias: ATen reads only its type and shape
        wanted_of(wrt, wanted, 3),
    )
    return in_order(gradients, wrt)


@composite("RMSNormalizationGrad")
@accepts_if(_has_whole_scale)
def rms_normalization_grad(
    x: Tensor,
    scale: Tensor,
    y: Unused,
    dy: Tensor,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """dx = inv (g - xhat mean(g xhat)), g = dy scale, inv = 1 / sqrt(mean(x²) + epsilon)"""
    axes, mask = list(range(axis % x.dim(), x.dim())), wanted_of(wrt, wanted, 2)
    z, dz = _at_least_float32(x), _at_least_float32(dy)
    inv = computed_once(torch.rsqrt(z.square().mean(axes, keepdim=True) + epsilon))
    if x.is_cuda and not torch.compiler.is_compiling():  # ATen has one fused kernel only there
        shape, given = list(x.shape[axes[0] :]), (dy.contiguous(), x.contiguous())
        return in_order(aten._fused_rms_norm_backward(*given, shape, inv, scale, mask), wrt)
    xhat = z * inv
    along = dz * xhat
    dx = dscale = None
    if mask[0]:
        second = (along * scale).mean(axes, keepdim=True)
        dx = ((dz * scale - xhat * second) * inv).to(x.dtype)
    if mask[1]:
        dscale = along.sum(list(range(axes[0]))) if axes[0] else along
        dscale = dscale.to(scale.dtype)
    return in_order((dx, dscale), wrt)


# -- group and instance --------------------------------------------------------------------------


def _has_pixels(call: ir.Node) -> bool:
    x, scale = call.inputs[:2]
    if x is None or x.shape is None or scale is None or len(x.shape) < 3:
        return False
    return scale.dtype == x.dtype


@composite("GroupNormalizationGrad")
@accepts_if(_has_pixels)
def group_normalization_grad(
    x: Tensor,
    scale: Tensor,
    b: Unused,
    y: Unused,
    dy: Tensor,
    *,
    epsilon: float,
    num_groups: int,
    stash_type: int,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """dx = inv (g - mean(g) - xhat mean(g xhat)), g = dy scale, each mean over one group

    16-bit types are computed in float32: ATen would keep their statistics in 16 bits.
    """
    z, dz, weight = (_at_least_float32(each).contiguous() for each in (x, dy, scale))
    sizes = z.shape[0], z.shape[1], prod(z.shape[2:])
    _, mean, inv = torch.native_group_norm(z, None, None, *sizes, num_groups, epsilon)
    mask = wanted_of(wrt, wanted, 3)
    gradients = aten.native_group_norm_backward(dz, z, mean, inv, weight, *sizes, num_groups, mask)
    return in_order([g if g is None else g.to(x.dtype) for g in gradients], wrt)


@composite("InstanceNormalizationGrad")
@accepts_if(_has_pixels)
def instance_normalization_grad(
    x: Tensor,
    scale: Tensor,
    b: Unused,
    y: Unused,
    dy: Tensor,
    *,
    epsilon: float,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """The same, each mean over one channel of one instance"""
    return group_normalization_grad(
        x,
        scale,
        None,
        None,
        dy,
        epsilon=epsilon,
        num_groups=x.shape[1],
        stash_type=1,
        wrt=wrt,
        wanted=wanted,
    )


# -- batch ---------------------------------------------------------------------------------------


def _is_supported_batch(call: ir.Node) -> bool:
    """Whether the running statistics have no gradients, and ATen supports the types."""
    x, scale, _, mean, var = call.inputs[:5]
    if x is None or x.shape is None or len(x.shape) < 2 or mean is None or var is None:
        return False
    return are_absent(call, 9, 10) and scale is not None and scale.dtype == mean.dtype == var.dtype


@composite("BatchNormalizationGrad")
@accepts_if(_is_supported_batch)
def batch_normalization_grad(
    x: Tensor,
    scale: Tensor,
    b: Unused,
    mean: Tensor,
    var: Tensor,
    y: Unused,
    running_mean: Unused,
    running_var: Unused,
    dy: Tensor,
    *,
    epsilon: float,
    momentum: float,
    training_mode: int,
    wrt: Ints,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """Training, by the batch's mean and var: dx = scale inv (dy - mean(dy) - xhat mean(dy xhat))

    Else dx = scale inv dy, and by the given statistics: dmean = -scale inv Σ dy,
    dvar = -scale inv² Σ dy xhat / 2.
    """
    mask = wanted_of(wrt, wanted, 5)
    wide = torch.promote_types(_at_least_float32(x).dtype, _at_least_float32(scale).dtype)
    weight, mean, var = scale.to(wide), mean.to(wide), var.to(wide)
    halves = x.is_cuda and x.dtype.itemsize == 2 and wide == torch.float32
    z, dz = (
        (x, dy) if halves else (x.to(wide), dy.to(wide))
    )  # the only mix of types that ATen supports
    inv = computed_once(torch.rsqrt(var + epsilon))
    trains, by_statistics = bool(training_mode), mask[3] or mask[4]
    dx, dscale, db = aten.native_batch_norm_backward(
        dz,
        z,
        weight,
        None if trains else mean,
        None if trains else var,
        mean if trains else None,
        inv if trains else None,
        trains,
        epsilon,
        [mask[0], mask[1] or mask[4], mask[2] or mask[3]] if by_statistics else mask[:3],
    )
    dx = dx if dx is None else dx.to(x.dtype)
    dmean = -(weight * inv * db).to(scale.dtype) if mask[3] else None
    dvar = (weight * inv.square() * dscale * -0.5).to(scale.dtype) if mask[4] else None
    dscale, db = (each if each is None else each.to(scale.dtype) for each in (dscale, db))
    return in_order((dx, dscale, db, dmean, dvar), wrt)
