"""The quantizer that `quantize` makes: for the provider that will run the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import no_progress
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.quantizers import make_quantizer, quantizer_key
from onward.compress.quantization.subject import Subject
from onward.graph.builder import OpBuilder
from onward.graph.int8_weights import ALL, ALL_BUT_OLD, marked_processors
from onward.providers.ort import exact_products
from onward.sessions.inference import InferenceSession

RNG = np.random.default_rng(0)


def settings_for(provider: str, to: str = "int8") -> QuantizeSettings:
    return QuantizeSettings(to=to, drop=0.01, provider=provider)


@pytest.mark.parametrize(
    ("provider", "planned"),
    [("CPUExecutionProvider", True), ("OpenVINOExecutionProvider", False)],
)
def test_int8_is_planned_for_the_kernels_of_the_provider(provider: str, planned: bool) -> None:
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", (5, "batch", 16))
    w, r = (RNG.normal(size=(1, 64, 16)).astype(np.float32) for _ in range(2))
    weights = op.initializer("w", w), op.initializer("r", r)
    model = op.model(y=op.LSTM(x, *weights, hidden_size=16))
    rows: list[dict[str, Any]] = [{"x": RNG.normal(size=(5, 2, 16)).astype(np.float32)}]
    data = Calibration(rows, InferenceSession(model).get_inputs())
    subject = Subject(model, data, None, "CPUExecutionProvider", {}, 0, False)
    quantizer = make_quantizer(subject, settings_for(provider), no_progress)
    assert bool(quantizer.plan) == planned


def test_providers_share_quantizers_of_formats_that_are_the_same_for_all() -> None:
    cpu, openvino = "CPUExecutionProvider", "OpenVINOExecutionProvider"
    assert quantizer_key(settings_for(cpu, "int4")) == quantizer_key(settings_for(openvino, "int4"))
    assert quantizer_key(settings_for(cpu)) != quantizer_key(settings_for(openvino))


def test_int8_weights_are_for_processors_like_this_one_or_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_products, "largest_weight", lambda: 127)
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 16))
    w = op.initializer("w", RNG.normal(size=(16, 16)).astype(np.float32))
    model = op.model(y=op.MatMul(x, w))
    rows = {"x": RNG.normal(size=(8, 16)).astype(np.float32)}
    data = Calibration(rows, InferenceSession(model).get_inputs())
    subject = Subject(model, data, None, "CPUExecutionProvider", {}, 0, False)
    found = []
    for processors in ("all", "this"):
        settings = replace(settings_for("CPUExecutionProvider"), processors=processors)
        quantizer = make_quantizer(subject, settings, no_progress)
        found.append(marked_processors(quantizer.write(quantizer.plan)))
    assert found == [ALL, ALL_BUT_OLD]
