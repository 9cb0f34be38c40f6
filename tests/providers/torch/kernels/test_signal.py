"""Transforms, windows and the mel scale beyond the node tests of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.providers.torch.one_node import run_op
from tests.providers.torch.reference import reference_op

rng = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def floats(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def pairs(z: Array) -> Array:
    """Complex numbers as (..., 2)."""
    return np.stack([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [None, 0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 5, 9])
@pytest.mark.parametrize("inverse", [0, 1])
def test_the_transform_along_any_axis_and_of_any_length(
    parts: int, axis: int | None, length: int | None, inverse: int
) -> None:
    x = floats(5, 6, parts)
    z = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    scalars = [None if number is None else np.array(number) for number in (length, axis)]
    (y,) = run_op("DFT", [x, *scalars], {"inverse": inverse})
    along = 1 if axis is None else axis % 3
    expected = np.fft.ifft(z, length, along) if inverse else np.fft.fft(z, length, along)
    np.testing.assert_allclose(y, pairs(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [4, 5, 6, 7])
def test_inverse_of_a_onesided_spectrum_is_the_signal(length: int) -> None:
    x = floats(2, length, 1)
    (spectrum,) = run_op("DFT", [x], {"onesided": 1})
    assert spectrum.shape == (2, length // 2 + 1, 2)
    np.testing.assert_allclose(spectrum, pairs(np.fft.rfft(x[..., 0])), rtol=1e-4, atol=1e-5)
    (back,) = run_op("DFT", [spectrum, np.array(length)], {"onesided": 1, "inverse": 1})
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


def test_a_float16_signal_has_a_float16_spectrum() -> None:
    x = floats(1, 8, 1).astype(np.float16)
    (y,) = run_op("DFT", [x])
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, pairs(np.fft.fft(x[..., 0])), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("parts, onesided", [(1, 1), (1, 0), (2, 0)])
@pytest.mark.parametrize("length, windowed", [(None, True), (6, True), (6, False), (None, False)])
def test_the_short_time_transform_takes_frame_after_frame(
    parts: int, onesided: int, length: int | None, windowed: bool
) -> None:
    x, step = floats(2, 17, parts), 4
    window = floats(6) if windowed else None
    scalar = None if length is None else np.array(length)
    (y,) = run_op("STFT", [x, np.array(step), window, scalar], {"onesided": onesided})
    z = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    size = 6 if windowed or length else 17
    frames = [z[:, start : start + size] for start in range(0, 17 - size + 1, step)]
    shaped = np.stack(frames, 1) * (1 if window is None else window)
    expected = np.fft.rfft(shaped) if onesided else np.fft.fft(shaped)
    np.testing.assert_allclose(y, pairs(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("datatype", [1, 11, 10, 6])
def test_windows_of_any_type_match_the_reference(op: str, periodic: int, datatype: int) -> None:
    attributes = {"periodic": periodic, "output_datatype": datatype}
    (expected,) = reference_op(op, [np.array(9)], attributes)
    (y,) = run_op(op, [np.array(9)], attributes)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3 if datatype == 10 else 1e-6)


@pytest.mark.parametrize("bins, length, rate", [(8, 16, 8192), (20, 512, 16000), (3, 64, 22050)])
@pytest.mark.parametrize("datatype", [1, 11])
def test_mel_matrix_matches_the_reference(bins: int, length: int, rate: int, datatype: int) -> None:
    edges = [np.array(edge, np.float64) for edge in (20.0, rate / 2)]
    inputs = [np.array(bins), np.array(length), np.array(rate), *edges]
    attributes = {"output_datatype": datatype}
    (expected,) = reference_op("MelWeightMatrix", inputs, attributes)
    (y,) = run_op("MelWeightMatrix", inputs, attributes)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
