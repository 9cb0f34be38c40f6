"""Statistics of values: over all batches, in memory that does not grow with them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.prepare import prepare
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.compress.quantization.int8.statistics import (
    measure_bounds,
    measure_channels,
    measure_histograms,
)
from onward.errors import DataError
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

RNG = np.random.default_rng(0)
WIDTH = 16


def two_layers() -> ir.Model:
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", WIDTH))
    w, v = (op.initializer(n, RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32)) for n in "wv")
    return op.model(y=op.MatMul(op.Relu(op.MatMul(x, w)), v))


def calibration(model: ir.Model, source: Any) -> Calibration:
    return Calibration(source, InferenceSession(model).get_inputs())


def test_bounds_and_counts_are_those_of_all_batches() -> None:
    model = prepare(two_layers())
    batches = [{"x": RNG.normal(size=(rows, WIDTH)).astype(np.float32)} for rows in (3, 8, 1)]
    data, x = calibration(model, batches), np.concatenate([each["x"] for each in batches])
    bounds = measure_bounds(model, ["x"], data)
    assert bounds["x"] == (float(x.min()), float(x.max()))
    (found,) = measure_histograms(model, bounds, data).values()
    expected, _ = np.histogram(x, len(found.counts), bounds["x"])
    assert found.counts.sum() == x.size
    assert np.abs(found.counts - expected).sum() <= 4  # numbers at the edges of bins


def test_channels_have_bounds_of_their_own() -> None:
    model = prepare(two_layers())
    x = RNG.normal(size=(40, WIDTH)).astype(np.float32) * np.arange(1, WIDTH + 1, dtype=np.float32)
    (found,) = measure_channels(model, {"x": -1}, calibration(model, [{"x": x}])).values()
    np.testing.assert_array_equal(found.low, x.min(axis=0))
    np.testing.assert_array_equal(found.high, x.max(axis=0))
    assert found.rows.shape == (40, WIDTH)


def test_nan_in_the_data_names_the_batch() -> None:
    model = prepare(two_layers())
    bad = np.full((2, WIDTH), np.nan, np.float32)
    data = calibration(model, [{"x": np.zeros((2, WIDTH), np.float32)}, {"x": bad}])
    with pytest.raises(DataError, match="batch 1"):
        measure_bounds(model, ["x"], data)


@pytest.mark.integration
@pytest.mark.parametrize("ranges", ["minmax", "percentile"])
def test_memory_does_not_grow_with_the_number_of_batches(ranges: Any) -> None:
    model, rows = two_layers(), 4096

    def batches(count: int) -> Callable[[], Iterator[dict[str, Any]]]:
        rng = np.random.default_rng(0)
        return lambda: ({"x": rng.random((rows, WIDTH), np.float32)} for _ in range(count))

    def peak(count: int) -> int:
        data = calibration(model, batches(count))
        gc.collect()
        tracemalloc.start()
        try:
            Int8Quantizer(model, data, ranges=ranges)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    Int8Quantizer(model, calibration(model, batches(2)), ranges=ranges)  # imports, caches
    batch = rows * WIDTH * 4
    # 32 batches more may take no more than what other threads allocate meanwhile: 4 batches.
    assert peak(40) - peak(8) <= 4 * batch
