"""Runs read back from folders: broken files, runs that died, sorting, settings, plots."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onward.errors import OptionError
from onward.runner.report.compare_plot import write_plot
from onward.runner.report.compare_runs import different_settings, read_runs, sort_runs
from onward.runner.run_process import has_died, this_process
from tests.runner.report.made_runs import make_run


def test_run_is_read_as_plain_values(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    [run] = read_runs(tmp_path)
    assert (run.name, run.status, run.model, run.step) == ("a", "finished", "cnn.onnx", 600)
    assert run.best_step == 500 and run.number("val_accuracy") == run.best["val_accuracy"] > 0.98
    assert run.settings["epochs"] == 3
    assert run.curves()["val_loss"][0][0] == 50 and "epoch" in run.curves()


def test_broken_and_missing_files_leave_gaps(tmp_path: Path) -> None:
    for name, text in (("cut", b'{"status": "fin'), ("binary", b"\xff\xfe\x00"), ("list", b"[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(text)
    odd = b'{"status": 3, "best": [], "last": {"val_loss": "x"}, "seconds": "long", "step": 1e999}'
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_bytes(odd)
    (tmp_path / "odd" / "config.toml").write_text("not = = toml")
    (tmp_path / "only metrics").mkdir()
    (tmp_path / "only metrics" / "metrics.csv").write_bytes(b"step,loss\n\xff\xff\xff")
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").write_text("")
    runs = read_runs(tmp_path)
    assert [run.name for run in runs] == ["binary", "cut", "list", "odd", "only metrics"]
    assert {run.status for run in runs} == {"unknown"}
    assert all(run.number("val_loss") is None and run.curves() is not None for run in runs)


def test_runs_are_ordered_by_their_start(tmp_path: Path) -> None:
    make_run(tmp_path, "a", started="2026-11-16T09:00:00")
    make_run(tmp_path, "b", started="2026-11-15T09:00:00")
    assert [run.name for run in read_runs(tmp_path)] == ["b", "a"]


@pytest.mark.skipif(os.name != "posix", reason="processes are looked up on POSIX")
def test_run_without_its_process_has_died(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = socket.gethostname()
    make_run(tmp_path, "alive", status="running", **this_process())
    make_run(tmp_path, "dead", status="running", pid=gone.pid, host=host)
    make_run(tmp_path, "elsewhere", status="running", pid=gone.pid, host="another machine")
    make_run(tmp_path, "ended", status="finished", pid=gone.pid, host=host)
    make_run(tmp_path, "silent", status="running")
    found = {run.name: run.status for run in read_runs(tmp_path)}
    assert found == {
        "alive": "running", "dead": "died", "elsewhere": "running", "ended": "finished",
        "silent": "running",
    }  # fmt: skip
    assert not has_died({"status": "running", "pid": -1, "host": host})


def test_best_run_comes_first_and_those_without_the_number_last(tmp_path: Path) -> None:
    for name, accuracy, loss in (("a", 0.9, 0.2), ("b", 0.95, 0.3)):
        make_run(tmp_path, name, best={"step": 1, "val_accuracy": accuracy, "val_loss": loss})
    make_run(tmp_path, "c", best={}, last={}, monitor="")
    make_run(tmp_path, "d", best={"val_loss": float("nan")}, last={})
    runs = read_runs(tmp_path)
    assert [run.name for run in sort_runs(runs, "val_accuracy")] == ["b", "a", "c", "d"]
    assert [run.name for run in sort_runs(runs, "val_loss")][:2] == ["a", "b"]
    with pytest.raises(OptionError, match="no run measured 'val_acuracy'\ndid you mean 'val_acc"):
        sort_runs(runs, "val_acuracy")


def test_settings_that_differ_have_the_default_where_they_were_not_given(tmp_path: Path) -> None:
    make_run(tmp_path, "a", config='model = "m.onnx"\nepochs = 5\nname = "a"\n')
    make_run(tmp_path, "b", config='model = "m.onnx"\noptimizer = "sgd"\nname = "b"\n')
    found = different_settings(read_runs(tmp_path))
    assert found == {"epochs": [5, 3], "optimizer": ["adamw", "sgd"]}


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_curves_of_runs_are_drawn_over_each_other(tmp_path: Path, suffix: str) -> None:
    make_run(tmp_path / "runs", "a", steps=60)
    make_run(tmp_path / "runs", "b", steps=60, speed=2.0)
    write_plot(read_runs(tmp_path / "runs"), tmp_path / f"plot{suffix}", ["loss"])
    written = (tmp_path / f"plot{suffix}").read_bytes()
    if suffix == ".svg":
        assert written.count(b"<polyline") > 4 and b"learning_rate" not in written
    assert len(written) > 2000


def test_plots_that_cannot_be_drawn_say_why(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "a", steps=60)
    runs = read_runs(tmp_path / "runs")
    with pytest.raises(OptionError, match=r"cannot be written as \.pdf"):
        write_plot(runs, tmp_path / "p.pdf")
    with pytest.raises(OptionError, match="no run has a curve of 'los'\ndid you mean 'loss'"):
        write_plot(runs, tmp_path / "p.svg", ["los"])
