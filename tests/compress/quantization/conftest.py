"""A model, its data, a quantizer of its own, and times that no clock measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.quantization import plan_search, quantize, side_by_side, slow_groups
from onward.graph.builder import OpBuilder
from onward.providers.model_sources import open_model
from tests.compress.quantization.simple_quantizer import SimpleQuantizer

Cost = Callable[[ir.Model], float]  # the seconds of a run
RNG = np.random.default_rng(0)
SIZES = (16, 64, 32, 8)
WEIGHTS = [
    (RNG.normal(size=pair) / np.sqrt(pair[0])).astype(np.float32) for pair in pairwise(SIZES)
]
ROWS = RNG.normal(size=(48, SIZES[0])).astype(np.float32)


def chain(*weights: np.ndarray[Any, Any], opset: int = 18) -> ir.Model:
    """Tanh(x @ w0) @ w1 ..., x (batch, 16)."""
    op = OpBuilder(opset=opset)
    x = op.input("x", "float32", ("batch", SIZES[0]))
    for number, w in enumerate(weights):
        x = op.MatMul(op.Tanh(x) if number else x, op.initializer(f"w{number}", w))
    return op.model(y=x)


@pytest.fixture
def model() -> ir.Model:
    return chain(*WEIGHTS)


@pytest.fixture
def rows() -> dict[str, Any]:
    return {"x": ROWS}


def count_operators(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph)


def cheaper_with_integers(model: ir.Model) -> float:
    """Every weight in int8 saves a tenth of the time."""
    return 1.0 - 0.1 * sum(name.endswith("_int8") for name in model.graph.initializers)


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cost], None]:
    """Replace the measurement of time by a function of the model."""

    def set_cost(cost: Cost) -> None:
        def time(models: Mapping[str, Any], feeds: Any, **_: Any) -> dict[str, float]:
            return {name: cost(open_model(model)) for name, model in models.items()}

        for module in (slow_groups, plan_search, side_by_side):
            monkeypatch.setattr(module, "time_in_turns", time)

    return set_cost


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch, set_times: Callable[[Cost], None]) -> None:
    """`quantize` with the simple quantizer, and int8 that is faster."""
    monkeypatch.setattr(
        quantize,
        "make_quantizer",
        lambda subject, settings, progress: SimpleQuantizer(subject.copy(), subject.calibration),
    )
    set_times(cheaper_with_integers)
