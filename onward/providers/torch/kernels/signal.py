"""Fourier transforms, windows and the mel scale."""

from __future__ import annotations

import math

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Float, Int, Tensor, torch_dtype
from onward.providers.torch.kernels.empty_tensors import empty_from

kernel = OpTable()


def _signal(x: Tensor) -> Tensor:
    """(..., 1) as real numbers, (..., 2) as complex ones, in a type that has a transform."""
    x = x.float() if x.dtype.itemsize == 2 else x
    if x.shape[-1] == 1:
        return x.squeeze(-1)
    # an empty tensor counts as contiguous with any strides, which view_as_complex still checks
    return torch.view_as_complex(x.contiguous() if x.numel() else x.new_empty(x.shape))


def _transformed(x: Tensor, length: int, axis: int, onesided: bool) -> Tensor:
    """Y[k] = Σ x[n] exp(-2πi k n / length), as (..., 2); onesided: up to length // 2"""
    if onesided and not x.is_complex():
        y = torch.fft.rfft(x, length, axis)
    else:
        y = torch.fft.fft(x, length, axis)
        y = y.narrow(axis, 0, length // 2 + 1) if onesided else y
    return torch.view_as_real(y)


@kernel("DFT")
def dft(
    x: Tensor,
    dft_length: Int | None = None,
    axis: Int | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Tensor:
    """The discrete Fourier transform along an axis, or its inverse (which divides by length)."""
    axis = (-2 if axis is None else axis) % x.dim()
    length = x.shape[axis] if dft_length is None else dft_length
    others = [size for place, size in enumerate(x.shape) if place != axis]
    if 0 in others:  # MKL refuses empty tensors
        return _empty_result(x, axis, length, bool(inverse), bool(onesided))
    signal = _signal(x)
    if inverse and onesided:
        y: Tensor = torch.fft.irfft(signal, dft_length, axis)
        return y.unsqueeze(-1).to(x.dtype)
    if not length and not onesided:
        return x.narrow(axis, 0, 0).narrow(-1, 0, 1).repeat_interleave(2, -1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, length, axis).resolve_conj()).to(x.dtype)
    return _transformed(signal, length, axis, bool(onesided)).to(x.dtype)


def _empty_result(x: Tensor, axis: int, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of an empty batch: an empty tensor that stays on x's autograd path."""
    sizes = [*x.shape[:-1], 1 if inverse and onesided else 2]
    sizes[axis] = length // 2 + 1 if onesided and not inverse else length
    return empty_from(x, sizes)


@kernel("STFT")
def stft(
    x: Tensor,
    frame_step: Int,
    window: Tensor | None = None,
    frame_length: Int | None = None,
    *,
    onesided: int,
) -> Tensor:
    """The transform of each frame x[t * step : t * step + length] * window"""
    x = x.unsqueeze(-1) if x.dim() == 2 else x  # exporters leave the real signal's last axis out
    if frame_length is None:
        frame_length = x.shape[1] if window is None else window.shape[0]
    frames = _signal(x).unfold(1, frame_length, frame_step)  # (batch, frames, length)
    if window is not None:
        frames = frames * window
    return _transformed(frames, frame_length, 2, bool(onesided)).to(x.dtype)


@kernel("HannWindow")
def hann_window(size: Int, *, output_datatype: int, periodic: int, device: torch.device) -> Tensor:
    """0.5 - 0.5 cos(2π n / N)"""
    window = torch.hann_window(size, bool(periodic), dtype=torch.float64, device=device)
    return window.to(torch_dtype(output_datatype))


@kernel("HammingWindow")
def hamming_window(
    size: Int, *, output_datatype: int, periodic: int, device: torch.device
) -> Tensor:
    """25/46 - 21/46 cos(2π n / N)"""
    window = torch.hamming_window(
        size, bool(periodic), 25 / 46, 21 / 46, dtype=torch.float64, device=device
    )
    return window.to(torch_dtype(output_datatype))


@kernel("BlackmanWindow")
def blackman_window(
    size: Int, *, output_datatype: int, periodic: int, device: torch.device
) -> Tensor:
    """0.42 - 0.5 cos(2π n / N) + 0.08 cos(4π n / N)"""
    window = torch.blackman_window(size, bool(periodic), dtype=torch.float64, device=device)
    return window.to(torch_dtype(output_datatype))


@kernel("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Int,
    dft_length: Int,
    sample_rate: Int,
    lower_edge_hertz: Float,
    upper_edge_hertz: Float,
    *,
    output_datatype: int,
    device: torch.device,
) -> Tensor:
    """One triangle a mel bin, of height 1, over the spectrum's bins: (dft_length // 2 + 1, bins).

    The corners lie evenly on the mel scale, mel(f) = 2595 log10(1 + f / 700), floored to bins.
    """
    low, high = _mel(lower_edge_hertz), _mel(upper_edge_hertz)
    corner = torch.arange(num_mel_bins + 2, dtype=torch.float64, device=device)
    mels = corner * ((high - low) / (num_mel_bins + 2)) + low
    hertz = 700 * torch.expm1(mels * (math.log(10) / 2595))
    corner = torch.floor((dft_length + 1) * hertz / sample_rate)
    left, centre, right = corner[:-2], corner[1:-1], corner[2:]
    place = torch.arange(dft_length // 2 + 1, dtype=torch.float64, device=device).unsqueeze(1)
    rise = (place - left) / (centre - left).clamp(min=1)
    fall = (right - place) / (right - centre).clamp(min=1)
    weight = torch.where(place < centre, rise, fall).clamp(min=0)
    return torch.where(place == centre, 1.0, weight).to(torch_dtype(output_datatype))


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)
