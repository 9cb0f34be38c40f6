"""quantize: what it keeps, what it undoes, and what it says where nothing helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress import quantize
from onward.compress.quantization import subject
from onward.errors import DataError, FeedError, MetricError, OptionError
from onward.graph.builder import OpBuilder
from onward.graph.files import save
from onward.sessions.inference import InferenceSession
from tests.compress.quantization.conftest import WEIGHTS, Cost, chain, count_operators
from tests.models import serialized


@pytest.fixture(autouse=True)
def _simple(simple: None) -> None:
    pass


def run(model: ir.Model, x: Any) -> Any:
    return InferenceSession(model).run(None, {"x": x})[0]


def test_a_model_becomes_int8(model: ir.Model, rows: dict[str, Any]) -> None:
    original = serialized(model)
    report = quantize(model, rows, memory=False)
    assert report.helped and report.speedup == pytest.approx(1 / 0.7)
    assert report.after.quality is not None and 0 < report.after.quality.error < 0.05
    y, z = run(model, rows["x"]), run(report.model, rows["x"])
    assert np.linalg.norm(y - z) / np.linalg.norm(y) == pytest.approx(
        report.after.quality.error, rel=1e-3
    )
    formats = {change.name: (change.format, change.reason) for change in report.changes}
    assert formats["MatMul_0"] == ("int8 static", "")
    assert formats["Tanh_1"] == ("unchanged", "the engine has no integer kernel for it here")
    assert report.details["formats"] == {"int8 static": 3}
    assert serialized(model) == original


def test_the_same_seed_gives_the_same_bytes(model: ir.Model) -> None:
    first, second = (quantize(model, memory=False, seed=3) for _ in range(2))
    assert serialized(first.model) == serialized(second.model)
    assert "random numbers" in " ".join(first.notes)


def test_what_is_slower_is_rejected(
    model: ir.Model, rows: dict[str, Any], set_times: Callable[[Cost], None]
) -> None:
    set_times(lambda model: 1.1 if count_operators(model, "DequantizeLinear") else 1.0)
    report = quantize(model, rows, memory=False)
    assert not report.helped and report.speedup == 1
    assert report.notes[0].startswith("nothing helped: int8 is 0.91 times as fast as float on cpu")
    assert count_operators(report.model, "DequantizeLinear") == 0
    assert report.rejected is not None and count_operators(report.rejected, "DequantizeLinear")
    assert report.rejected_figures is not None and report.rejected_figures.seconds == 1.1


def test_nodes_that_lose_too_much_stay_float(rows: dict[str, Any]) -> None:
    rough = WEIGHTS[1].copy()
    rough[0, 0] = 1e4  # one scale for the tensor: every other weight becomes 0
    wide = np.where(np.arange(64) == 0, 0, WEIGHTS[0]).astype(np.float32)  # its input is 0
    report = quantize(chain(wide, rough, WEIGHTS[2]), rows, memory=False)
    reasons = {change.name: change.reason for change in report.changes}
    assert report.helped and report.details["within_budget"]
    assert reasons["MatMul_2"] == "quantizing it loses too much quality"
    assert reasons["MatMul_0"] == reasons["MatMul_4"] == ""


def test_a_budget_that_cannot_be_met_is_reported(model: ir.Model, rows: dict[str, Any]) -> None:
    report = quantize(model, rows, drop=0, memory=False)
    assert not report.helped and not report.details["within_budget"]
    assert "where 0.00% is allowed (drop)" in report.notes[0]
    assert report.rejected is not None and report.after == report.before
    assert not any("unchanged: quantizing it loses" in note for note in report.notes)


def test_a_metric_decides(model: ir.Model, rows: dict[str, Any]) -> None:
    def score(run: Any) -> float:
        return 100 - 1000 * float(np.abs(run(rows)["y"] - expected).mean())

    expected = run(model, rows["x"])
    loose = quantize(model, rows, metric=score, drop="90%", memory=False)
    assert loose.helped and loose.metric_name == "score" and loose.before.quality is not None
    assert loose.before.quality.metric == pytest.approx(100, abs=0.01)
    strict = quantize(model, rows, metric=score, drop=0.001, memory=False)
    assert len(strict.details["formats"]) == 0 or not strict.helped


def test_a_model_that_is_already_quantized_is_left_alone(
    model: ir.Model, rows: dict[str, Any]
) -> None:
    report = quantize(quantize(model, rows, memory=False).model, rows)
    assert not report.helped
    assert "already quantized: it has 6 DequantizeLinear, 3 QuantizeLinear" in str(
        report.notes
    ) or "already quantized: it has 3 QuantizeLinear, 6 DequantizeLinear" in str(report.notes)


def test_a_model_without_anything_to_quantize_says_so() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    report = quantize(op.model(y=op.Exp(x)))
    assert not report.helped and report.rejected is None
    assert report.notes == ["nothing to do: the model has nothing to quantize to int8"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"x": np.full((4, 16), np.nan, np.float32)}, DataError),
        ({"x": np.zeros((4, 15), np.float32)}, FeedError),
        ([{"z": np.zeros((4, 16), np.float32)}], FeedError),
        ([], DataError),
    ],
)
def test_wrong_data_is_refused(model: ir.Model, data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        quantize(model, data)


def test_a_metric_that_raises_ends_the_search_at_once(
    model: ir.Model, rows: dict[str, Any]
) -> None:
    with pytest.raises(MetricError, match="the metric raised KeyError"):
        quantize(model, rows, metric=lambda run: run(rows)["missing"])


def test_one_row_is_enough(model: ir.Model, rows: dict[str, Any]) -> None:
    report = quantize(model, {"x": rows["x"][:1]}, memory=False, drop=0.05)
    assert report.helped
    assert "measured on 1 row, which it was fitted to: give some tens" in report.notes
    assert not any("measured on" in note for note in quantize(model, rows, memory=False).notes)


def test_a_metric_that_returns_nothing_is_named(model: ir.Model, rows: dict[str, Any]) -> None:
    with pytest.raises(MetricError, match="the metric returned None, not a number"):
        quantize(model, rows, metric=lambda run: None)  # type: ignore[arg-type, return-value]


def test_settings_that_have_no_effect_are_refused(model: ir.Model, rows: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="method is a setting of int4 and int2, not of int8"):
        quantize(model, rows, method="gptq")
    with pytest.raises(OptionError, match="the size of 'batch' must be at least 1"):
        quantize(model, rows, sizes={"batch": 0})


@pytest.mark.parametrize("opset", [7, 13, 22])
def test_any_opset_is_quantized(opset: int, rows: dict[str, Any]) -> None:
    assert quantize(chain(*WEIGHTS, opset=opset), rows, memory=False).helped


def test_progress_is_called_for_each_step(model: ir.Model, rows: dict[str, Any]) -> None:
    steps: list[str] = []
    quantize(model, rows, memory=False, progress=lambda step, done, total: steps.append(step))
    assert steps[0] == "preparing the model and measuring ranges"
    assert "timing the result against float" in steps


def test_a_large_model_is_not_opened_in_float(
    model: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_LARGE", 1)
    monkeypatch.setattr(subject, "Judge", None)
    report = quantize(model)
    assert report.helped and report.after.quality is None and report.speedup is None
    assert "speed and quality were not measured" in report.notes[-1]


@pytest.mark.integration
def test_the_memory_of_sessions_is_measured(rows: dict[str, Any], tmp_path: Path) -> None:
    large = np.ones((512, 1024), np.float32) / 512
    wide = np.tile(WEIGHTS[0], (1, 8)).astype(np.float32)
    save(chain(wide, large), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", rows, drop=0.5)
    assert report.before.memory is not None and report.after.memory is not None
    assert report.before.file_bytes == (tmp_path / "m.onnx").stat().st_size


def test_few_bits_that_do_not_make_the_file_smaller_say_so() -> None:
    """The weight is an output, too: it stays in the file as it is."""
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 64))
    w = op.initializer("w", np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))
    model = op.model(y=op.MatMul(x, w), weight=op.Identity(w))
    rows = {"x": np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)}
    report = quantize(model, rows, "int4", drop="5%", memory=False)
    assert not report.helped
    assert report.notes[0].startswith("nothing helped: int4 makes the file larger: "), report.notes
