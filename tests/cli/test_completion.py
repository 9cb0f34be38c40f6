"""Shell completion: scripts for the shells, verbs, options, providers and files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "from onward.cli.main import main; main()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A command called `onward`, models, and other files."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/onward"
    command.write_text(f"#!{sys.executable}\n{SCRIPT}\n")
    command.chmod(0o755)
    for name in ("my model.onnx", "net.onnx", "notes.txt", "feeds.npz"):
        (tmp_path / name).touch()
    (tmp_path / "nested").mkdir()
    return tmp_path


def run(folder: Path, *command: str, **environment: str) -> str:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "HOME": str(folder), **environment}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def complete(folder: Path, *words: str) -> list[str]:
    """The completions that bash gets after these words."""
    return run(
        folder,
        "onward",
        _ONWARD_COMPLETE="complete_bash",
        COMP_WORDS="\n".join(words),
        COMP_CWORD=str(len(words) - 1),
    ).splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_each_shell_gets_its_script(folder: Path, shell: str) -> None:
    disable = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = run(folder, "onward", "--show-completion", shell, **disable)
    assert "_ONWARD_COMPLETE" in shown and "onward" in shown
    assert shown == run(folder, "onward", _ONWARD_COMPLETE=f"source_{shell}") or shown


def test_the_script_completes_in_bash(folder: Path) -> None:
    program = """
    source <(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 onward --show-completion bash)
    COMP_WORDS=(onward in); COMP_CWORD=1
    _onward_completion onward
    echo "${COMPREPLY[@]}"
    """
    assert run(folder, "bash", "-c", program).strip() == "inspect"


def test_completion_is_installed(folder: Path) -> None:
    disable = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    run(folder, "onward", "--install-completion", "bash", **disable)
    assert "onward" in (folder / ".bash_completions/onward.sh").read_text()


def test_verbs_are_completed(folder: Path) -> None:
    assert complete(folder, "onward", "co") == ["compare"]


def test_models_and_folders_are_completed(folder: Path) -> None:
    assert complete(folder, "onward", "inspect", "ne") == ["nested/", "net.onnx"]


def test_feeds_are_completed_after_a_name(folder: Path) -> None:
    assert complete(folder, "onward", "run", "net.onnx", "--feed", "x=fe") == ["x=feeds.npz"]


def test_providers_are_completed(folder: Path) -> None:
    assert complete(folder, "onward", "run", "net.onnx", "--provider", "ref") == ["reference"]


def test_options_are_completed(folder: Path) -> None:
    assert "--size" in complete(folder, "onward", "bench", "net.onnx", "--s")
