"""onward quantize: its table, its files, its exit codes, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.compress.quality import Quality
from onward.compress.quantization import quantize as quantization
from onward.compress.report import Measured, Report
from onward.graph.files import load
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


def test_ctrl_c_ends_without_a_file(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: Any, **__: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantization, "quantize", interrupted)
    assert call("quantize", model, "--save", tmp_path / "small.onnx").code == 130
    assert not (tmp_path / "small.onnx").exists()
