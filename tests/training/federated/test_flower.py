"""Flower's apps: what they refuse, and several real clients on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.errors import OptionError, PackageMissing
from onward.training.federated import flower
from onward.training.federated.flower import make_client_app, make_server_app

ROOT = Path(__file__).parents[3]


@pytest.fixture
def without_flower(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flwr", None)
    yield


@pytest.mark.usefixtures("without_flower")
def test_a_missing_flower_is_named_with_its_extra() -> None:
    for make in (lambda: make_client_app(dict), make_server_app):
        with pytest.raises(PackageMissing, match=r"\ninstall it with: pip install 'onward\[feder"):
            make()


def test_a_setting_that_neither_program_nor_run_has_is_named() -> None:
    assert flower._setting({"rounds": 5}, "rounds", None) == 5
    assert flower._setting({"rounds": 5}, "rounds", 2) == 2
    with pytest.raises(OptionError, match=r"no setting 'folder'\ngive --run-config 'folder=...'"):
        flower._setting({"folder": ""}, "folder", None)


@pytest.mark.flower  # it installs Flower, from an index, and starts ten processes
def test_three_processes_learn_what_one_process_learns_bit_for_bit(tmp_path: Path) -> None:
    shown = ""
    for rounds in (2, 6):  # the second continues the first
        command = [str(ROOT / "scripts" / "flower_venv"), str(tmp_path / "flower"), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr
        before, shown = shown, done.stdout
    right = [float(each) for each in re.findall(r"round \d: 3 clients, ([\d.]+)%", shown)]
    assert len(right) == 6 and right[-1] > 75
    assert "without Flower: the same parameters" in shown
    assert right[:2] == [float(each) for each in re.findall(r"clients, ([\d.]+)%", before)]
    assert (tmp_path / "flower/federated/model.onnx").exists()
