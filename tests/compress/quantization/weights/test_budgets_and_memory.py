"""quantize(to="int4"): bits that were asked for are kept; a large model is never all in memory."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress import quantize
from onward.compress.quantization import subject
from onward.compress.quantization.weights import prepare
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.errors import OptionError
from onward.graph import files
from onward.graph.builder import OpBuilder
from onward.graph.files import saved_bytes, weight_bytes
from onward.sessions.inference import InferenceSession

pytestmark = pytest.mark.integration


def chain(layers: int, size: int) -> ir.Model:
    """x (batch, size) times one weight after another."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    y = op.input("x", "float32", ("batch", size))
    for place in range(layers):
        w = rng.normal(size=(size, size)) / size**0.5
        y = op.MatMul(y, op.initializer(f"w{place}", w.astype(np.float32)))
    return op.model(y=y)


@pytest.mark.parametrize("asked", [{"bits": 4.5}, {"size": 5_600}])
def test_bits_and_sizes_that_were_asked_for_are_kept(asked: dict[str, float]) -> None:
    model = chain(2, 64)
    rows = {"x": np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)}
    report = quantize(model, rows, "int4", drop=0.0001, memory=False, **asked)  # type: ignore[arg-type]
    assert report.helped and report.details["within_budget"] is False
    [line] = [note for note in report.notes if note.startswith("costs ")]
    assert line.endswith("asked for") and "of the outputs' similarity, more than 0.01%" in line
    assert not [change for change in report.changes if change.reason]
    assert weight_bytes(report.model) * 8 <= 4.5 * 2 * 64 * 64
    without = quantize(model, rows, "int4", drop=0.0001, memory=False)
    assert weight_bytes(without.model) > weight_bytes(report.model)


def test_traces_of_exporters_are_no_part_of_a_size_that_was_asked_for() -> None:
    model = chain(2, 64)
    for node in model.graph:
        node.metadata_props["pkg.torch.onnx.stack_trace"] = "line of a file\n" * 1000
    rows = {"x": np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)}
    report = quantize(model, rows, "int4", memory=False, size=12_000)
    assert report.helped and report.after.file_bytes is not None
    assert report.after.file_bytes <= 12_000


def grid(rng: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    """A weight whose blocks of 32 lie on a grid of 4 bits with offsets, as in GGUF files."""
    codes = rng.integers(0, 16, (size * size // 32, 32))
    steps = rng.uniform(0.01, 0.03, (len(codes), 1)).astype(np.float16)
    w = codes * steps + rng.uniform(-0.3, 0.1, steps.shape)
    return w.reshape(size, size).T.astype(np.float32)


@pytest.mark.parametrize("method", ["mse", "awq"])
@pytest.mark.parametrize("share", [0.17, 0.25])
def test_a_file_is_never_above_the_size_that_was_asked_for(
    method: str, share: float, tmp_path: Path
) -> None:
    """What a plan adds to the graph counts: sums of blocks, factors, nodes."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    y = op.input("x", "float32", ("batch", 256))
    for place in range(2):
        y = op.Tanh(op.MatMul(y, op.initializer(f"w{place}", grid(rng, 256))))
    more = [op.initializer(f"v{k}", rng.normal(size=(256, 64)).astype(np.float32)) for k in (0, 1)]
    model = op.model(a=op.MatMul(y, more[0]), b=op.Relu(op.MatMul(y, more[1])))
    size = int(share * weight_bytes(model))
    spread = np.exp(rng.normal(size=256))
    rows = {"x": (rng.normal(size=(64, 256)) * spread).astype(np.float32)}
    report = quantize(model, rows, "int4", drop=0.5, memory=False, size=size, method=method)
    assert report.helped
    report.save(tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size == report.after.file_bytes <= size


@pytest.mark.parametrize("layers", [1, 6])
def test_every_size_that_some_plan_has_is_met(layers: int) -> None:
    """The bytes that the nodes take are those of the model, not a guess for all models."""
    model = chain(layers, 64)
    least = layers * 1000
    for _ in range(2):  # what cannot be, weights alone show; then a plan is written
        with pytest.raises(OptionError, match=r"the file needs at least [\d,]+ bytes") as raised:
            WeightQuantizer(model, method="rtn", size=least)
        needed = re.search(r"at least ([\d,]+) bytes", str(raised.value))
        assert needed is not None
        least = int(needed[1].replace(",", ""))
    quantizer = WeightQuantizer(model, method="rtn", size=least)
    assert {form.bits for form in quantizer.plan.values()} == {2}
    assert saved_bytes(quantizer.write(quantizer.plan)) == least
    with pytest.raises(OptionError, match=f"at least {least:,} bytes .*; size is {least - 1:,}"):
        WeightQuantizer(model, method="rtn", size=least - 1)
    usual = WeightQuantizer(model, bits=4, block=64, method="rtn")
    size = saved_bytes(usual.write(usual.plan))
    same = WeightQuantizer(model, method="rtn", size=size)
    assert {form.bits for form in same.plan.values()} == {4}  # and not 2


def test_a_size_for_a_model_without_weights_is_no_error() -> None:
    op = OpBuilder(opset=18)
    model = op.model(y=op.Relu(op.input("x", "float32", ("batch", 4))))
    assert not WeightQuantizer(model, size=100).plan
    report = quantize(model, to="int4", memory=False, size=100)
    assert not report.helped and "nothing to quantize" in str(report)


def test_weights_with_offsets_get_no_factors() -> None:
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 256))
    model = op.model(y=op.MatMul(x, op.initializer("w", grid(rng, 256))))
    spread = np.exp(2 * rng.normal(size=256))
    rows = {"x": (rng.normal(size=(64, 256)) * spread).astype(np.float32)}
    report = quantize(model, rows, "int4", drop=0.5, memory=False, size=62_000, method="awq")
    assert "Mul" not in [node.op_type for node in report.model.graph]
    assert "Concat" in [node.op_type for node in report.model.graph]  # of the sums of blocks


def test_a_large_model_is_read_and_written_one_weight_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, small = tmp_path / "m.onnx", tmp_path / "small.onnx"
    ir.save(chain(24, 512), path, external_data="m.data")
    given = (tmp_path / "m.data").stat().st_size
    monkeypatch.setattr(subject, "_LARGE", 1 << 20)
    monkeypatch.setattr(prepare, "LARGEST_IN_MEMORY", 1 << 20)
    monkeypatch.setattr(files, "_COPIED_AT_MOST", 1 << 20)
    quantize(path, to="int4", method="rtn").save(
        small
    )  # what is imported and cached is not counted
    tracemalloc.start()
    quantize(path, to="int4", method="rtn").save(small)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < given / 2
    assert small.stat().st_size < given / 6
    x = np.random.default_rng(0).normal(size=(1, 512)).astype(np.float32)
    expected, found = (InferenceSession(each).run(None, {"x": x})[0] for each in (path, small))
    assert np.corrcoef(expected[0], found[0])[0, 1] > 0.8  # 24 layers of 4 bits


def test_bits_that_were_asked_for_are_no_reason_for_outputs_of_nan() -> None:
    """A weight that is rounded to 0 in front of a logarithm."""
    rng = np.random.default_rng(0)
    w, v = (rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    w[:, 0] = 0
    w[:2, 0] = 1e-30, 1
    op = OpBuilder(opset=18)
    h = op.MatMul(op.input("x", "float32", ("batch", 64)), op.initializer("w", w))
    model = op.model(y=op.MatMul(op.Log(op.Abs(h)), op.initializer("v", v)))
    x = np.abs(rng.normal(size=(64, 64))).astype(np.float32)
    x[:, 1] = 0
    report = quantize(model, {"x": x}, "int4", bits=4.5, method="rtn", memory=False)
    assert not report.helped
    assert "nothing helped: outputs are NaN or infinite in int4" in str(report)
    assert "nan%" not in "".join(report.notes)
