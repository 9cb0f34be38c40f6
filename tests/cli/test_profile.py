"""onward profile: its table, its sentence and its files, with stored ceilings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.cli import profile
from onward.errors import ProviderError
from onward.measure.machine import write_record
from onward.measure.profile.roofline import record_name
from onward.workers.worker import Worker
from tests.cli.conftest import Call
from tests.models import mlp

CODE = "from onward.cli.main import main; main()"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose cache has this machine's ceilings, so that none are measured."""
    onward.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32))
    record = {"flops": {"float32": 1e10}, "bytes_per_second": 1e10, "dispatch": 1e-6}
    for threads in (0, 1):
        asked = {"provider": "CPUExecutionProvider", "options": {}, "threads": threads}
        path = tmp_path / ".cache" / "onward" / "ceilings" / record_name(asked)
        write_record(path, {**record, "tried": ["float32"]})
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "COLUMNS": "120", "NO_COLOR": "1"}


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, "profile", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(home), cwd=home
    )


@pytest.mark.integration
def test_profile_prints_a_table_and_writes_files(home: Path) -> None:
    done = run(
        home, "m.onnx", "--size", "batch=8", "-p", "cpu", "--iterations", "4", "--warm-up", "1",
        "--range", "1:3", "--trace", "t.json", "--page", "p.html",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "MatMul",
        "bound by",
        "of ceiling",
        "Bound by ",
        "10.0 GFLOP/s float32",
        "p.html",
    ):
        assert words in done.stdout
    events = json.loads((home / "t.json").read_text())["traceEvents"]
    assert {event["args"]["iteration"] for event in events} == {0, 1}
    assert "<svg" not in (home / "p.html").read_text() and (home / "p.html").stat().st_size > 20_000


@pytest.mark.integration
def test_json_with_feeds_from_a_file(home: Path) -> None:
    done = run(
        home, "m.onnx", "x.npz", "-p", "cpu", "--threads", "1", "--iterations", "2", "--json"
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["feeds"] == {"x": "float32 3x4"}
    assert found["threads"] == 1
    assert found["operators"] and found["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.onnx"], "no model at nowhere.onnx"),
        (["m.onnx", "--range", "late"], "--range takes FIRST:LAST, such as 5:15, not 'late'"),
        (["m.onnx", "--size", "time=3"], "no dynamic dimension 'time'"),
        (
            ["m.onnx", "--page", "no/where.html"],
            "no/where.html cannot be written: there is no folder no; make",
        ),
    ],
)
def test_bad_arguments_are_one_line(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    called = call("profile", *arguments)
    assert called.code == 2
    assert message in called.err and "Traceback" not in called.err


@pytest.fixture
def request_without_end() -> dict[str, Any]:
    return {
        "model": "m.onnx", "feeds": [], "sizes": {}, "seed": 0, "threads": 0,
        "providers": [["CPUExecutionProvider", {}]], "iterations": 10**8, "warm_up": 1,
        "between": [0, 10**8], "fresh": False, "trace": None, "page": None,
    }  # fmt: skip


def interrupt_during_timing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Press Ctrl-C when the first figure comes."""
    shown: list[str] = []

    def at(_: object, doing: str, *__: object) -> None:
        shown.append(doing)
        if doing == "timing" and shown.count(doing) <= times:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(profile.WorkProgress, "show_step", at)


def test_ctrl_c_makes_the_child_send_what_it_measured(
    home: Path, monkeypatch: pytest.MonkeyPatch, request_without_end: dict[str, Any]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    interrupt_during_timing(monkeypatch, 1)
    found = profile._profile_in_child(request_without_end)
    assert "ended early" in found["notes"][0]


def test_a_second_ctrl_c_ends_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, request_without_end: dict[str, Any]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(Worker, "interrupt", lambda *_, **__: None)  # a child that does not stop
    interrupt_during_timing(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        profile._profile_in_child(request_without_end)


def test_a_child_that_dies_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, request_without_end: dict[str, Any]
) -> None:
    def killed(*arguments: Any) -> Worker:
        worker = Worker(*arguments)
        worker.kill()
        return worker

    monkeypatch.chdir(home)
    monkeypatch.setattr(profile, "Worker", killed)
    with pytest.raises(ProviderError, match="the profile died of SIGKILL while it measured"):
        profile._profile_in_child(request_without_end)
