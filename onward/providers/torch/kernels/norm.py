"""Normalisations."""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Ints, Tensor, torch_dtype
from onward.providers.torch.kernels.memory import computed_once, is_compiled_for_cpu

kernel = OpTable()


def _at_least_float32(x: Tensor) -> Tensor:
    """At least a float32, where a float16 would overflow or lose its mean."""
    return x.float() if x.dtype.itemsize == 2 else x


@kernel("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float,
    momentum: float,
    training_mode: int,
) -> tuple[Tensor, ...]:
    """Each channel: y = (x - mean) / sqrt(var + epsilon) * scale + b

    In training the mean and the population variance are the batch's, and
    running = given * momentum + batch's * (1 - momentum).
    """
    if not training_mode:
        return (_affine(x, mean, var, scale, b, epsilon),)
    if _has_batch_kernel(x, scale, b):
        y, batch_mean, batch_var = _normalized_by_batch(x, scale, b, epsilon)
        return y, *_running(mean, var, batch_mean, batch_var, momentum)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    batch_var, batch_mean = torch.var_mean(_at_least_float32(x), axes, correction=0)
    if x.dim() == 1:
        batch_var, batch_mean = batch_var.reshape(1), batch_mean.reshape(1)
    if torch.compiler.is_compiling() and x.dim() > 1:
        y = _written_out(x, batch_mean, batch_var, scale, b, epsilon)
    else:
        y = _affine(x, batch_mean, batch_var, scale, b, epsilon)
    return y, *_running(mean, var, batch_mean, batch_var, momentum)


def _running(
    mean: Tensor, var: Tensor, batch_mean: Tensor, batch_var: Tensor, momentum: float
) -> tuple[Tensor, Tensor]:
    """The running mean and variance after a batch."""
    if momentum == 0:  # the given ones are not read: training passes them only for onnxruntime
        return batch_mean.to(mean.dtype), batch_var.to(var.dtype)
    running_mean = mean * momentum + batch_mean * (1 - momentum)
    running_var = var * momentum + batch_var * (1 - momentum)
    return running_mean.to(mean.dtype), running_var.to(var.dtype)


def _has_batch_kernel(x: Tensor, scale: Tensor, b: Tensor) -> bool:
    """Whether ATen's kernel for a batch serves: a compiler fuses what is written out instead."""
    if torch.compiler.is_compiling() or not x.is_cpu or x.dim() < 2:
        return False
    is_float32 = x.dtype == scale.dtype == b.dtype == torch.float32
    return is_float32 and x.numel() > x.shape[1]  # more than one number for each channel


def _normalized_by_batch(
    x: Tensor, scale: Tensor, b: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and population variance of each channel.

    On a CPU torch.var_mean alone takes several times as long as this kernel.
    """
    channels, count = x.shape[1], x.numel() // x.shape[1]
    mean, var = x.new_zeros(channels), x.new_zeros(channels)
    y, _, _ = torch.native_batch_norm(x, scale, b, mean, var, True, 1.0, eps)
    return y, mean, var * ((count - 1) / count)  # it gives the variance of a sample


def _written_out(
    x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, b: Tensor, eps: float
) -> Tensor:
    """For a compiler: ATen's own would take a square root and a quotient for each element."""
    shape = (-1, *[1] * (x.dim() - 2))
    factor = computed_once(torch.rsqrt(var + eps) * scale)
    centred = _at_least_float32(x) - mean.reshape(shape)
    return (centred * factor.reshape(shape) + b.reshape(shape)).to(x.dtype)


def _affine(x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, b: Tensor, eps: float) -> Tensor:
    if x.dim() == 1:  # one channel
        return _affine(x.unsqueeze(1), mean, var, scale, b, eps).squeeze(1)
    if x.dtype == mean.dtype == var.dtype == scale.dtype == b.dtype:
        return _normalized(x, mean, var, scale, b, eps)
    wide = reduce(torch.promote_types, [t.dtype for t in (x, mean, var, scale, b)])
    mean, var, scale, b = (t.to(wide) for t in (mean, var, scale, b))
    if not (
        wide == torch.float32 and x.dtype.itemsize == 2
    ):  # the only mix of types that ATen supports
        return _normalized(x.to(wide), mean, var, scale, b, eps).to(x.dtype)
    return _normalized(x, mean, var, scale, b, eps)


def _normalized(
    x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, b: Tensor, eps: float
) -> Tensor:
    """ATen's own: torch.nn.functional.batch_norm refuses an epsilon of 0 (2.11)."""
    return torch.batch_norm(x, scale, b, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled)


@kernel("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float) -> Tensor:
    """Normalise each channel of each instance by itself."""
    return torch.group_norm(x, x.shape[1], scale, b, epsilon)


@kernel("GroupNormalization")
def group_normalization(
    x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float, num_groups: int, stash_type: int
) -> Tensor:
    """Normalise each group of channels of each instance; scale and b are each channel's."""
    return torch.group_norm(x, num_groups, scale, b, epsilon)


@kernel("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
    outputs: int,
) -> tuple[Tensor, ...]:
    """From `axis` on: y = (x - mean) / sqrt(var + epsilon) * scale + b"""
    shape = x.shape[axis:]
    whole = scale.shape == shape and (b is None or b.shape == shape)
    weight, bias = (scale, b) if whole else (None, None)
    if is_compiled_for_cpu(x) and x.dtype == torch.float32:
        y, *statistics = _standardized(x, shape, epsilon)
        whole = False
    elif outputs == 1:
        y = F.layer_norm(x, shape, weight, bias, epsilon)
        statistics = []
    else:
        # the CPU keeps the statistics in x's type, which is too narrow for a float16
        narrow = x.dtype.itemsize == 2 and x.device.type == "cpu"
        z = x.float() if narrow else x
        weight, bias = (t if t is None else t.to(z.dtype) for t in (weight, bias))
        y, *statistics = torch.native_layer_norm(z, shape, weight, bias, epsilon)
        y = y.to(x.dtype)
    if not whole:
        y = y * scale if b is None else y * scale + b
    return y, *[each.to(torch_dtype(stash_type)) for each in statistics[: outputs - 1]]


def _standardized(x: Tensor, shape: torch.Size, epsilon: float) -> list[Tensor]:
    """x without scale and bias, and the statistics: one root for each row, not for 16 elements."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    inv = computed_once(torch.rsqrt(var + epsilon))
    return [(x - mean) * inv, mean, inv]


@kernel("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int
) -> Tensor:
    """From `axis` on: y = x / sqrt(mean(x²) + epsilon) * scale"""
    shape = x.shape[axis:]
    if is_compiled_for_cpu(x) and x.dtype == torch.float32:
        axes = list(range(axis % x.dim(), x.dim()))
        squares = x.square().mean(axes, keepdim=True)
        return (x * computed_once(torch.rsqrt(squares + epsilon)) * scale).to(scale.dtype)
    if scale.dtype == x.dtype and scale.shape == shape:
        return F.rms_norm(x, shape, scale, epsilon)
    return (F.rms_norm(x, shape, None, epsilon) * scale).to(scale.dtype)


@kernel("LRN")
def lrn(x: Tensor, *, alpha: float, beta: float, bias: float, size: int) -> Tensor:
    """Over `size` neighbouring channels: y = x / (bias + alpha / size * Σ x²)^beta"""
    if not x.numel():
        return x
    squares = (_at_least_float32(x) ** 2).reshape(x.shape[0], 1, x.shape[1], -1)
    squares = F.pad(squares, (0, 0, (size - 1) // 2, size // 2))
    mean = F.avg_pool2d(squares, (size, 1), stride=1).reshape(x.shape)
    return (x / (bias + alpha * mean) ** beta).to(x.dtype)


@kernel("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int, p: int) -> Tensor:
    """Along an axis: y = x / ‖x‖ₚ, and 0 where the norm is 0"""
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, 0.0, x / norm)


@kernel("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Ints) -> Tensor:
    """Over the axes: y = (x - mean) / (standard deviation + 1e-9)"""
    deviation, mean = torch.std_mean(_at_least_float32(x), axes, correction=0, keepdim=True)
    return ((x - mean) / (deviation + 1e-9)).to(x.dtype)
