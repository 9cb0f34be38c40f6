"""The command line: what it prints, and one line with exit code 2 for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onward
from tests.models import mlp


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from onward.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={"COLUMNS": "100"}
    )


def test_inspect_shows_what_a_model_is(tmp_path: Path) -> None:
    onward.save(mlp(), tmp_path / "m.onnx")
    done = call("inspect", str(tmp_path / "m.onnx"))
    assert done.returncode == 0
    for word in ("(batch, 4)", "MatMul", "opsets: ai.onnx 23", "weights: 2 tensors, 9 elements"):
        assert word in done.stdout


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no")
    for path, message in (
        ("nowhere.onnx", "no model at nowhere"),
        (str(tmp_path / "bad.onnx"), "not an ONNX"),
    ):
        done = call("inspect", path)
        assert done.returncode == 2
        assert message in done.stderr.replace("\n", "")
        assert "Traceback" not in done.stderr


def test_an_unknown_verb_is_exit_code_2() -> None:
    assert call("frobnicate").returncode == 2


def test_providers_are_listed() -> None:
    done = call("providers")
    assert "CPUExecutionProvider" in done.stdout and "ReferenceExecutionProvider" in done.stdout


def test_the_version_is_printed() -> None:
    assert call("--version").stdout == f"onward {onward.__version__}\n"
