"""Sweeps in worker processes: cores, crashes and Ctrl-C."""

from __future__ import annotations

import _thread
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import onward
from onward.runner.sweep import sweep_plan
from onward.runner.sweep.sweep_result import SweepResult

FAKES = "tests.runner.sweep.fake_trials"


def sweep(folder: Path, fake: str, **options: Any) -> SweepResult:
    run_trial = f"{FAKES}:{fake}"
    given = {"workers": 2, **options}
    return onward.sweep("m.onnx", folder=folder / "s", run_trial=run_trial, **given)


@pytest.mark.integration
def test_processes_divide_the_cores_and_a_crash_is_a_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_plan, "usable_cores", lambda: 7)
    result = sweep(tmp_path, "thread_count", search={"batch_size": [2, 3, 1]}, grid=True)
    assert [row.value for row in result.rows] == [3.0, 3.0, None]
    assert result.rows[-1].settings == {"batch_size": 1}
    assert "died with exit code 3 while it ran trial" in result.rows[-1].error
    assert os.getpid() not in {row.numbers["process"] for row in result.rows if row.numbers}


@pytest.mark.integration
def test_ctrl_c_stops_all_processes_and_queues_their_trials(tmp_path: Path) -> None:
    watching = threading.Event()

    def interrupt_when_both_run() -> None:
        while not watching.wait(0.02):
            if len(list((tmp_path / "s").glob("begun-*"))) == 2:
                _thread.interrupt_main()
                return

    watcher = threading.Thread(target=interrupt_when_both_run)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep(tmp_path, "endless", search={"epochs": [1, 2, 3]}, grid=True, prune="none")
    finally:
        watching.set()
        watcher.join()
    again = {"search": {"epochs": [1, 2, 3]}, "grid": True, "resume": True, "workers": 1}
    result = sweep(tmp_path, "quadratic", **again)
    states = [row.state for row in result.rows]
    assert states.count("interrupted") == 2 and len(states) == 5
    assert sorted(row.settings["epochs"] for row in result.rows[:3]) == [1, 2, 3]
