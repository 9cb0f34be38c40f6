"""Ranges: what they cover, and what they leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.compress.quantization.int8.ranges import METHODS, Int8Range, choose_range
from onward.compress.quantization.int8.statistics import ValueHistogram


def histogram(numbers: np.ndarray[Any, Any], bins: int = 2048) -> ValueHistogram:
    counts, edges = np.histogram(numbers, bins)
    return ValueHistogram(float(edges[0]), float(edges[-1]), counts)


def squared_error(numbers: np.ndarray[Any, Any], chosen: Int8Range) -> float:
    scale, zero = float(chosen.scale), int(chosen.zero_point)
    restored = (np.clip(np.rint(numbers / scale) + zero, 0, 255) - zero) * scale
    return float(((restored - numbers) ** 2).mean())


def outliers() -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(0).normal(size=200_000)
    numbers[0] = 60.0
    return numbers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shift", [-50.0, 0.0, 50.0])
def test_zero_is_exact(method: str, shift: float) -> None:
    chosen = choose_range(histogram(np.random.default_rng(0).normal(size=1000) + shift), method)
    assert chosen.low <= 0 <= chosen.high
    assert squared_error(np.zeros(1), chosen) == 0


def test_minmax_covers_everything() -> None:
    numbers = outliers()
    chosen = choose_range(histogram(numbers), "minmax")
    assert (chosen.low, chosen.high) == (numbers.min(), 60.0)


@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_one_outlier_is_cut_off(method: str) -> None:
    assert choose_range(histogram(outliers()), method).high < 58


def test_mse_errs_less_than_the_others() -> None:
    numbers = np.random.default_rng(0).standard_t(3, size=100_000)
    errors = {
        each: squared_error(numbers, choose_range(histogram(numbers), each)) for each in METHODS
    }
    assert errors["mse"] <= 1.02 * min(errors.values()) < errors["minmax"]


def test_a_value_that_is_always_zero_has_a_scale() -> None:
    chosen = choose_range(ValueHistogram(0.0, 0.0, np.array([9])), "mse")
    assert chosen.scale > 0 and chosen.zero_point == 0
