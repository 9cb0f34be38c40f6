"""Weights that are only stored in 16 bits are not timed: noise would keep some of them in 32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onward.compress import quantize
from tests.compress.quantization.conftest import Cost


def test_noise_keeps_no_weight_in_32_bits(
    model: ir.Model, rows: dict[str, Any], set_times: Callable[[Cost], None]
) -> None:
    def noise(model: ir.Model) -> float:
        """Models with some weights of 16 bits seem to be faster than with all or none."""
        kinds = [w.const_value.dtype for w in model.graph.initializers.values() if w.const_value]
        return 0.7 if 0 < kinds.count(ir.DataType.FLOAT16) < 3 else 1.0

    set_times(noise)
    report = quantize(model, rows, to="fp16", memory=False)
    assert report.helped
    assert report.details["formats"] == {"float16": 3}
