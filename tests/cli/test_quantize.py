"""onward quantize: its table, its files, its exit codes, and one line for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.compress.quality import Quality
from onward.compress.quantization import quantize as quantization
from onward.compress.report import Measured, Report
from onward.graph.builder import OpBuilder
from onward.graph.files import load, save
from onward.sessions.inference import InferenceSession
from tests.cli.conftest import Call, is_one_line
from tests.models import mlp, sandwich

BEFORE = Measured(file_bytes=4096, seconds=0.002, quality=Quality(similarity=1.0, error=0.0))
AFTER = Measured(file_bytes=1024, seconds=0.001, quality=Quality(similarity=0.99, error=0.1))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of `quantize`, which returns what helped; `drop` 0 does not help."""
    calls: list[Any] = []

    def quantize(model: Path, data: Any, to: str, **settings: Any) -> Report:
        calls.append((model, data, to, settings))
        settings["progress"]("measuring", 0, None)
        if settings["drop"] != "0":
            return Report(
                task="quantize", model=sandwich(), helped=True, before=BEFORE, after=AFTER
            )
        return Report(
            task="quantize",
            model=mlp(),
            helped=False,
            before=BEFORE,
            after=BEFORE,
            notes=["nothing helped: int8 loses 1.00%"],
            rejected=sandwich(),
            rejected_figures=AFTER,
        )

    monkeypatch.setattr(quantization, "quantize", quantize)
    return calls


def has_pow(path: Path) -> bool:
    return any(node.op_type == "Pow" for node in load(path).graph)


def test_what_helped_is_shown_and_saved(
    call: Call, model: Path, asked: list[Any], tmp_path: Path
) -> None:
    small, page = tmp_path / "small.onnx", tmp_path / "report.html"
    called = call(
        *(
            "quantize",
            model,
            "--data",
            "rows.npz",
            "--to",
            "int4",
            "--drop",
            "2%",
            "--tune",
            "5min",
        ),
        *("--size", "100MB", "--size", "batch=8", "--save", small, "--page", page),
    )
    assert called.code == 0 and "2.00 times as fast" in called.out and "saved" in called.out
    assert has_pow(small) and "onward quantize" in page.read_text()
    _, data, to, settings = asked[0]
    assert (data, to, settings["drop"]) == ("rows.npz", "int4", "2%")
    assert settings["tune"].seconds == 300 and settings["tune"].folder == Path(f"{small}.tuning")
    assert settings["size"] == "100MB" and settings["sizes"] == {"batch": 8}


def test_what_did_not_help_is_not_saved(
    call: Call, model: Path, asked: list[Any], tmp_path: Path
) -> None:
    small = tmp_path / "small.onnx"
    called = call("quantize", model, "--drop", "0", "--save", small)
    assert called.code == 1 and not small.exists()
    assert "nothing helped: int8 loses 1.00%" in called.out and "--force" in called.out
    forced = call("quantize", model, "--drop", "0", "--save", small, "--force")
    assert forced.code == 0 and has_pow(small)
    assert "although it does not meet what was asked for" in forced.out


def test_original_is_not_saved_by_force(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nothing(*_: Any, **__: Any) -> Report:
        return Report(task="quantize", model=mlp(), helped=False, before=BEFORE, after=BEFORE)

    monkeypatch.setattr(quantization, "quantize", find_nothing)
    small = tmp_path / "small.onnx"
    called = call("quantize", model, "--save", small, "--force")
    assert called.code == 1 and "no other model than the original" in called.out
    assert not small.exists()


def test_json_is_all_that_is_printed(
    call: Call, model: Path, asked: list[Any], tmp_path: Path
) -> None:
    called = call("quantize", model, "--json", "--save", tmp_path / "small.onnx")
    assert json.loads(called.out)["speedup"] == 2


def test_the_model_is_never_replaced(call: Call, model: Path, asked: list[Any]) -> None:
    assert is_one_line(call("quantize", model, "--save", model), "is the model itself")
    assert not asked


def test_bad_input_is_one_line(call: Call, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 5), np.float32))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 4), np.nan, np.float32))
    assert is_one_line(call("quantize", model, "--to", "int3"), "no format 'int3'")
    assert is_one_line(call("quantize", model, "--drop", "x"), "drop must be a share")
    assert is_one_line(call("quantize", model, "--data", tmp_path / "none.npz"), "no data file at")
    assert is_one_line(call("quantize", model, "--data", tmp_path / "wrong.npz"), "'x'")
    assert is_one_line(call("quantize", model, "--data", tmp_path / "nan.npz"), "NaN or infinite")
    assert is_one_line(call("quantize", tmp_path / "none.onnx"), "none.onnx")
    assert is_one_line(call("quantize", model, "--size", "1MB", "--size", "2MB"), "twice")
    assert is_one_line(
        call("quantize", model, "--save", tmp_path / "no" / "small.onnx"), "cannot be written"
    )


METRICS = """
import numpy as np
X = np.ones((3, 64), np.float32)
def total(run): return float(abs(run({"x": X})["y"]).sum())
def share(outputs, targets): return 1.0
def text(run): return "high"
class Own:
    def __call__(self, run): return 0.5
class Sized:
    def __init__(self, k): pass
threshold = 3
"""


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """x (batch, 64) -> y (batch, 64), as a file."""
    op = OpBuilder(opset=18)
    w = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    h = op.Relu(op.MatMul(op.input("x", "float32", ("batch", 64)), op.initializer("w", w[0])))
    save(op.model(y=op.MatMul(h, op.initializer("v", w[1]))), tmp_path / "wide.onnx")
    return tmp_path / "wide.onnx"


def test_metric_is_a_function_of_a_file_or_a_package(
    call: Call, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metrics.py").write_text(METRICS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metrics", raising=False)
    y = InferenceSession(wide).run(None, {"x": np.ones((3, 64), np.float32)})[0]
    for source in ("own_metrics.py:total", f"{tmp_path / 'own_metrics.py'}:total"):
        report = json.loads(
            call("quantize", wide, "--to", "int4", "--metric", source, "--json").out
        )
        assert report["before"]["quality"]["metric"] == pytest.approx(float(np.abs(y).sum()))
        assert report["metric_name"] == "total"
    report = json.loads(call("prune", wide, "--metric", "own_metrics:Own", "--json").out)
    assert report["before"]["quality"]["metric"] == 0.5 and report["metric_name"] == "Own"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no_such.py:total", "no Python file at no_such.py"),
        ("no_such_package:total", "no_such_package cannot be imported"),
        ("own_metrics.py:totl", "has no attribute 'totl'; did you mean 'total'?"),
        ("own_metrics.py:share", "metric share(outputs, targets) must take one argument"),
        ("own_metrics.py:text", "the metric returned a str, not a number"),
        ("own_metrics.py:threshold", "the metric is of type int"),
        ("own_metrics.py:Sized", "the class cannot be called without arguments"),
        ("own_metrics.py", "names no function; write own_metrics.py:function"),
        ("broken.py:total", "broken.py fails: SystemExit: 3"),
        ("accurracy", "no metric 'accurracy'; did you mean 'accuracy'"),
    ],
)
@pytest.mark.parametrize("verb", ["quantize", "prune"])
def test_wrong_metric_is_one_line(
    call: Call,
    wide: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    source: str,
    words: str,
) -> None:
    (tmp_path / "own_metrics.py").write_text(METRICS)
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert is_one_line(call(verb, wide, "--metric", source), words)


def test_ctrl_c_ends_without_a_file(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: Any, **__: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantization, "quantize", interrupted)
    assert call("quantize", model, "--save", tmp_path / "small.onnx").code == 130
    assert not (tmp_path / "small.onnx").exists()
