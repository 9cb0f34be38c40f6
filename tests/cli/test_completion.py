"""Shell completion: scripts for the shells, verbs, options, providers and files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call

SCRIPT = "from onward.cli.main import main; main()"
GIVEN_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"  # the shell is an argument

Complete = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current and home folder: models, and other files."""
    for name in ("my model.onnx", "net.onnx", "notes.txt", "feeds.npz"):
        (tmp_path / name).touch()
    (tmp_path / "nested").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def complete(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """The completions that bash gets after some words."""

    def run(*words: str) -> list[str]:
        monkeypatch.setenv("_ONWARD_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return call().out.splitlines()

    return run


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_each_shell_gets_its_script(
    call: Call, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GIVEN_SHELL, "1")
    shown = call("--show-completion", shell).out
    assert "_ONWARD_COMPLETE" in shown and "onward" in shown
    monkeypatch.setenv("_ONWARD_COMPLETE", f"source_{shell}")
    assert shown.strip() == call().out.strip()


def test_the_script_completes_in_bash(folder: Path) -> None:
    """In a shell, with a command called `onward`."""
    command = folder / "onward"
    command.write_text(f"#!{sys.executable}\n{SCRIPT}\n")
    command.chmod(0o755)
    program = f"""
    source <({GIVEN_SHELL}=1 onward --show-completion bash)
    COMP_WORDS=(onward in); COMP_CWORD=1
    _onward_completion onward
    echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", program],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.strip() == "inspect"


def test_completion_is_installed(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GIVEN_SHELL, "1")
    call("--install-completion", "bash")
    assert "onward" in (folder / ".bash_completions/onward.sh").read_text()


def test_verbs_are_completed(complete: Complete) -> None:
    assert complete("onward", "co") == ["compare"]


def test_models_and_folders_are_completed(complete: Complete) -> None:
    assert complete("onward", "inspect", "ne") == ["nested/", "net.onnx"]


def test_feeds_are_completed_after_a_name(complete: Complete) -> None:
    assert complete("onward", "run", "net.onnx", "--feed", "x=fe") == ["x=feeds.npz"]


def test_providers_are_completed(complete: Complete) -> None:
    assert complete("onward", "run", "net.onnx", "--provider", "ref") == ["reference"]


def test_options_are_completed(complete: Complete) -> None:
    assert "--size" in complete("onward", "bench", "net.onnx", "--s")


def test_architectures_and_values_are_completed(complete: Complete) -> None:
    assert complete("onward", "new", "re") == ["resnet"]
    assert complete("onward", "new", "gpt2", "--size", "l") == ["large"]
    assert "--depth" in complete("onward", "new", "resnet", "--d")
