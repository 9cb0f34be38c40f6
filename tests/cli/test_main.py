"""The command line: start-up, exit codes and one-line errors."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onward
from onward.cli import main as front
from onward.cli.main import VERBS
from onward.errors import PeerFailed, RunFenced
from tests.cli.conftest import Call, is_one_line
from tests.models import mlp

CODE = "from onward.cli.main import main; main()"


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in its own process."""
    command = [sys.executable, "-c", CODE, *arguments]
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    variables = {**kept, "COLUMNS": "100", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)


def test_every_verb_is_listed_with_the_first_line_of_its_help(call: Call) -> None:
    listed = call("--help").out
    for name, (module, line) in VERBS.items():
        function = getattr(importlib.import_module(module), name.replace("-", "_"))
        first, _, rest = (inspect.getdoc(function) or "").partition("\n")
        assert first.startswith(line.removesuffix(".")), name
        assert name in listed
        assert name in ("demo", "providers") or "onward" in rest, f"{name} shows no example"


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help(call: Call, verb: str) -> None:
    called = call(verb, "--help")
    assert called.code == 0 and "Usage" in called.out and verb in called.out


def test_no_verb_prints_help_with_exit_code_2(call: Call) -> None:
    called = call()
    assert called.code == 2 and "Usage" in called.out + called.err


def test_unknown_verb_is_one_line(call: Call) -> None:
    assert is_one_line(call("inspekt"), "No such command 'inspekt'", "inspect")


def test_unknown_option_is_one_line(call: Call, model: Path) -> None:
    assert is_one_line(call("run", model, "--frob"), "--frob")


@pytest.mark.parametrize("verb", ["inspect", "run", "bench"])
def test_bad_model_path_is_one_line(call: Call, tmp_path: Path, verb: str) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no")
    assert is_one_line(call(verb, tmp_path / "none.onnx"), "no model at", "none.onnx")
    assert is_one_line(call(verb, tmp_path), "is not a file")
    assert is_one_line(call(verb, tmp_path / "bad.onnx"), "not an ONNX")


def test_file_without_permission_is_one_line(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *more: object) -> None:  # root may read any file
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("onward.graph.files.read_model", refuse)
    assert is_one_line(call("inspect", model), f"Permission denied: {model}")


def test_json_with_invalid_characters_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe{}")
    onward.save(mlp(), tmp_path / "m.onnx")
    assert is_one_line(call("run", tmp_path / "m.onnx", tmp_path / "bad.json"), "is not JSON")


def test_name_with_brackets_is_printed_unchanged(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "[red]m[bold] :smile:.onnx"
    assert is_one_line(call("inspect", path), str(path))
    onward.save(mlp(), path)
    assert str(path) in call("run", path, "--random", "--json").out


def test_bug_is_one_line_that_asks_for_a_report(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(importlib.import_module("onward.cli.providers"), "providers", broken)
    called = call("providers")
    assert called.code == 70 and called.err.count("\n") == 1
    assert "ZeroDivisionError: oh" in called.err and "report it" in called.err
    with_trace = call("providers", "--traceback")
    assert with_trace.code == 70 and "Traceback (most recent call last)" in with_trace.err


def test_traceback_option_works_anywhere(call: Call, tmp_path: Path) -> None:
    for arguments in (["--traceback", "inspect"], ["inspect", "--traceback"]):
        called = call(*arguments, tmp_path / "none.onnx")
        assert called.code == 2 and "Traceback" in called.err


def test_ctrl_c_is_exit_code_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("onward.cli.providers"), "providers", stopped)
    called = call("providers")
    assert called.code == 130 and "Traceback" not in called.err


def test_ctrl_c_within_an_import_is_exit_code_130(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:  # what pybind11 makes of it
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(importlib.import_module("onward.cli.providers"), "providers", stopped)
    called = call("providers")
    assert called.code == 130 and called.err == ""


@pytest.mark.integration
def test_closed_pipe_is_not_an_error() -> None:
    for option, first in (("--json", "[\n"), ("", "\n")):
        script = (
            f'"{sys.executable}" -c "{CODE}" providers {option} | (head -c 1; exec 0<&-; sleep 0)'
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
        assert done.stdout == first[:1] or done.stdout.isspace()
        assert done.stderr == ""


def test_warnings_are_one_line_each(model: Path) -> None:
    done = shell("run", str(model), "--random", "--provider", "cuda")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: CUDAExecutionProvider is not on this machine; ")
    assert done.stderr.count("\n") == 1


def test_a_warning_is_printed_once_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    show = front._print_once(set())
    for text in ("first", "second", "first"):
        show(UserWarning(text), UserWarning, "file", 1)
    assert capsys.readouterr().err == "warning: first\nwarning: second\n"


@pytest.mark.integration
def test_narrow_terminal_without_colour() -> None:
    done = shell("providers", COLUMNS="30", LC_ALL="C")
    assert done.returncode == 0 and "Azure" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 30
    wrong = shell("inspect", "none", NO_COLOR="1", FORCE_COLOR="1")
    assert wrong.stderr.startswith("error: no model at none; ")
    assert wrong.stderr.count("\n") == 1 and "\x1b" not in wrong.stderr


def test_help_and_providers_load_no_unneeded_engine() -> None:
    program = f"""
import sys
try:
    {CODE}
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
    for argument, none_of in (
        ("--help", {"numpy", "onnxruntime", "onnx", "onnx_ir", "torch"}),
        ("providers", {"onnx", "onnx_ir", "torch", "openvino"}),
    ):
        command = [sys.executable, "-c", program, argument]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert not none_of & set(done.stderr.split())


def test_running_a_plain_model_loads_no_graph_library(model: Path) -> None:
    program = f"""
import sys
try:
    {CODE}
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
    command = [sys.executable, "-c", program, "run", str(model), "--random"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert not {"onnx_ir", "torch", "openvino"} & set(done.stderr.split())


def test_version_is_printed(call: Call) -> None:
    assert call("--version").out == f"onward {onward.__version__}\n"


def test_exit_codes_are_documented() -> None:
    for code in (0, 1, front.BAD_INPUT, front.BUG, front.FENCED, front.INTERRUPTED):
        assert f"{code} " in (front.__doc__ or "")


def test_a_run_that_others_train_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = PeerFailed("process 9 owns the run now")
    error.__cause__ = RunFenced("process 9 owns the run now")
    assert front._print_error(error) == front._print_error(error.__cause__) == front.FENCED
    assert capsys.readouterr().err.count("process 9 owns the run now") == 2


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_is_wrapped_once_at_the_width_of_the_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch, verb: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = call(verb, "--help").out
    prose = shown.split("\n onward ")[0].split("\u256d")[0].splitlines()
    for line, after in itertools.pairwise(map(str.strip, prose)):
        if line and after:  # inside a paragraph: the next word did not fit
            assert len(line) + 1 + len(after.split()[0]) > width - 2, line
