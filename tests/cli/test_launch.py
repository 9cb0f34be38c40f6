"""onward launch: what is printed, what is run, and what cannot work."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, is_one_line

verb = importlib.import_module("onward.cli.launch")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "a b.py").write_text("")
    return tmp_path / "a b.py"


def test_a_dry_run_prints_the_torchrun_command(call: Call, script: Path) -> None:
    called = call("launch", "--nproc", 2, "--dry-run", script, "--nproc", 7, "-m", "a b")
    words = shlex.split(called.out)
    assert called.code == 0 and words[:2] == ["torchrun", "--standalone"]
    assert words[-5:] == [str(script), "--nproc", "7", "-m", "a b"]


def test_hosts_get_a_command_each(call: Call, script: Path) -> None:
    called = call("launch", "--hosts", "node[1-3]", "--nodes", "2:3", script)
    assert called.out.count("--nnodes=2:3") == 3
    assert [line for line in called.out.splitlines() if line.startswith("#")] == [
        "# on node1",
        "# on node2",
        "# on node3",
    ]
    over_ssh = call("launch", "--hosts", "a,b", "--ssh", "--python", "/p", "--dry-run", script).out
    assert over_ssh.count("ssh -tt") == 2 and "/p -m torch.distributed.run" in over_ssh


@pytest.mark.parametrize(
    ("typed", "started"),
    [
        (["train", "m.onnx", "-h"], ["-m", "onward", "train", "m.onnx", "-h"]),
        (["train", "--traceback", "-x"], ["-m", "onward", "train", "--traceback", "-x"]),
        (["-m", "json.tool", "--help"], ["-m", "json.tool", "--help"]),
        (["--", "train", "--help"], ["-m", "onward", "train", "--help"]),
    ],
)
def test_what_follows_the_command_is_passed_on(
    call: Call, monkeypatch: pytest.MonkeyPatch, typed: list[str], started: list[str]
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], nproc: int, **settings: Any) -> int:
        seen.update(settings, command=command, nproc=nproc)
        return 7

    monkeypatch.setattr(verb, "run_local", run)
    called = call("launch", "--nproc", 3, "--max-restarts", 2, *typed)
    assert called.code == 7
    assert seen["command"] == [sys.executable, "-u", *started]
    assert (seen["nproc"], seen["max_restarts"], seen["nodes"]) == (3, 2, (1, 1))
    assert seen["variables"] is os.environ


def test_a_ray_cluster_runs_the_command_as_it_was_given(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **settings: Any) -> int:
        seen.update(settings, command=command)
        return 0

    monkeypatch.setattr(verb, "run_on_ray", run)
    assert call("launch", "--ray", "--nodes", 2, "--nproc", 4, "train", "--data", "x").code == 0
    assert seen["command"] == ["train", "--data", "x"]
    assert (seen["nodes"], seen["nproc"], seen["cpus"], seen["gpus"]) == (2, 4, 1, 0)
    assert is_one_line(call("launch", "--ray", "--nodes", "1:2", "train"), "--ray takes --nodes N")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ([], "there is no command to launch"),
        (["none.py"], "no script at none.py"),
        (["--nproc", "0", "train"], "--nproc must be at least 1"),
        (["--nprocs", "2", "train"], "No such option: --nprocs"),
        (["--nodes", "x", "train"], "--nodes takes N or MIN:MAX, not 'x'"),
        (["--nodes", "2", "train"], "several machines need an address where they meet"),
        (["--ssh", "train"], "--ssh needs hosts"),
        (["--hosts", "a,,[", "train"], "is not a list of hosts"),
        (["--hosts", "", "train"], "is not a list of hosts"),
        (["--hosts", "a", "--rdzv", "b", "train"], "--rdzv b is not one of the hosts a"),
    ],
)
def test_what_cannot_work_is_one_line(call: Call, typed: list[str], words: str) -> None:
    assert is_one_line(call("launch", *typed), words)
