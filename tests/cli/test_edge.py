"""onward edge: its files, its JSON, and bad options in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.conftest import Call, is_one_line


def test_files_and_json(call: Call, model: Path, tmp_path: Path) -> None:
    called = call("edge", model, "--target", "web", "-o", tmp_path / "web")
    assert called.code == 0 and "model.onnx" in called.out and "loader.mjs" in called.out
    called = call("edge", model, "-t", "minimal", "-o", tmp_path / "m", "--json")
    report = json.loads(called.out)
    assert report["chosen"] == "original" and "model.ort" in report["files"]


def test_a_candidate_from_a_file_is_written(call: Call, model: Path, tmp_path: Path) -> None:
    options = ("-t", "node", "-o", tmp_path / "n", "--candidate", f"mine={model}", "--json")
    assert json.loads(call("edge", model, *options).out)["chosen"] == "mine"


def test_bad_options_are_one_line(call: Call, model: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "x")
    assert is_one_line(call("edge", model, "--target", "moon", *out), "no target 'moon'")
    assert is_one_line(call("edge", tmp_path / "no.onnx", "-t", "web", *out), "no.onnx")
    assert is_one_line(call("edge", model, "-t", "web", *out, "--candidate", "x"), "NAME=FILE")
    assert is_one_line(
        call("edge", model, "-t", "web", *out, "--measure", "--node-modules", tmp_path),
        "onnxruntime-web is not installed" if shutil.which("node") else "node is not installed",
    )
    assert not (tmp_path / "x").exists()
