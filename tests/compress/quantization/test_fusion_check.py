"""The fusion check: what onnxruntime runs in float with conversions around it is taken out."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.fusion_check import (
    UNFUSED,
    drop_unfused,
    find_unfused,
    is_widened_at_load,
)
from onward.compress.quantization.half.quantizer import HalfQuantizer
from onward.providers.defect import ARM, architecture
from onward.sessions.inference import InferenceSession
from tests.compress.quantization.conftest import count_operators
from tests.compress.quantization.simple_quantizer import SimpleQuantizer

CPU = "CPUExecutionProvider"


def make(model: ir.Model, rows: dict[str, Any]) -> SimpleQuantizer:
    return SimpleQuantizer(model, Calibration(rows, InferenceSession(model).get_inputs()))


def test_operators_without_integer_kernels_are_found(model: ir.Model, rows: dict[str, Any]) -> None:
    quantizer = make(model, rows)
    found = find_unfused(quantizer.write(quantizer.plan), quantizer.plan)
    assert found == ["Tanh_1", "Tanh_3"]


def test_unfused_nodes_are_taken_out_of_the_plan(model: ir.Model, rows: dict[str, Any]) -> None:
    quantizer, undone = make(model, rows), dict[str, str]()
    plan, written = drop_unfused(quantizer, quantizer.plan, undone, CPU)
    assert list(plan) == ["MatMul_0", "MatMul_2", "MatMul_4"]
    assert undone == {"Tanh_1": UNFUSED, "Tanh_3": UNFUSED}
    assert count_operators(written, "QuantizeLinear") == 3
    assert find_unfused(written, plan) == []


def test_other_engines_are_not_asked(model: ir.Model, rows: dict[str, Any]) -> None:
    quantizer = make(model, rows)
    plan, _ = drop_unfused(quantizer, quantizer.plan, {}, "OpenVINOExecutionProvider")
    assert plan == quantizer.plan


def test_weights_that_are_stored_in_16_bits_are_widened_when_a_model_is_loaded(
    model: ir.Model, rows: dict[str, Any]
) -> None:
    for kind in ("float16", "bfloat16"):
        stored = HalfQuantizer(model, None, kind=kind)
        assert is_widened_at_load(stored.write(stored.plan), stored.plan, CPU)
        assert not is_widened_at_load(model, stored.plan, "OpenVINOExecutionProvider")
    computed = HalfQuantizer(model, None, store_only=False)
    has_kernels = architecture() == ARM  # onnxruntime computes in 16 bits there
    widened = is_widened_at_load(computed.write(computed.plan), computed.plan, CPU)
    assert widened is not has_kernels
    integers = make(model, rows)
    assert not is_widened_at_load(integers.write(integers.plan), integers.plan, CPU)
