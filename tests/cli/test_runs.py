"""onward runs: the list, comparisons, plots, reports that are opened, and its errors."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest

from tests.cli.conftest import Call, is_one_line
from tests.runner.report.made_runs import make_run


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = 'model = "cnn.onnx"\ndata = "digits.npz"\n'
    make_run(Path("runs"), "cnn-1", steps=60, config=base, started="2026-11-15T10:00:00")
    make_run(
        Path("runs"), "cnn-2", steps=60, speed=2.0, config=f"{base}learning_rate = 0.01\n",
        started="2026-11-16T10:00:00", best={"step": 40, "val_accuracy": 0.995, "val_loss": 0.05},
    )  # fmt: skip


def test_runs_are_listed_with_broken_ones(call: Call) -> None:
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    make_run(Path("runs"), "half", steps=60, status="interrupted", step=30)
    lines = call("runs").out.splitlines()
    found = {line.split()[0]: line for line in lines if line.strip()}
    assert "unknown" in found["broken"] and "30 of 60" in found["half"]
    for words in (
        "finished",
        "cnn.onnx",
        "val_accuracy 99.50%",
        "0.05",
        "4m 12s",
        "2026-11-16 10:00",
    ):
        assert words in found["cnn-2"]


def test_list_is_sorted_by_start_or_by_a_number(call: Call) -> None:
    assert call("runs").out.index("cnn-1") < call("runs").out.index("cnn-2")
    by_accuracy = call("runs", "--sort", "val_accuracy").out
    assert by_accuracy.index("cnn-2") < by_accuracy.index("cnn-1")


def test_chosen_numbers_are_columns(call: Call) -> None:
    shown = call("runs", "--metric", "val_loss").out
    assert "val_loss" in shown and "99.50%" not in shown


def test_only_the_best_run_is_shown(call: Call) -> None:
    shown = call("runs", "--best", "val_accuracy").out
    assert shown.startswith("cnn-2") and "99.50% at step 40" in shown and "cnn-1" not in shown


def test_json_has_every_run(call: Call) -> None:
    runs = json.loads(call("runs", "--json").out)
    assert [run["name"] for run in runs] == ["cnn-1", "cnn-2"]
    assert runs[1]["best"]["val_loss"] == 0.05 and runs[1]["settings"]["learning_rate"] == 0.01


def test_comparison_shows_what_differs(call: Call) -> None:
    shown = call("runs", "cnn-1", "cnn-2").out
    assert "learning_rate" in shown and "0.01" in shown and "digits.npz" not in shown
    [accuracy] = [line for line in shown.splitlines() if "val_accuracy" in line]
    assert "99.50% *" in accuracy
    assert "--plot compare.html" in shown
    assert not list(Path().glob("*.html"))


@pytest.mark.parametrize("name", ["compare.svg", "compare.html"])
def test_comparison_is_plotted(call: Call, name: str) -> None:
    called = call("runs", "cnn-1", "cnn-2", "--plot", name)
    assert called.code == 0 and f"written: {name}" in called.out
    assert "cnn-2" in Path(name).read_text("utf-8")


def test_runs_of_one_name_are_shown_with_their_folders(call: Call) -> None:
    make_run(Path("older"), "cnn-1", steps=60)
    shown = call("runs", "cnn-1", "older/cnn-1").out
    assert "runs/cnn-1" in shown and "older/cnn-1" in shown


def test_report_is_opened(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert is_one_line(call("runs", "cnn-1", "--open"), "cnn-1 has no report", "finished")
    folder = make_run(Path("runs"), "new", steps=60)
    folder.report.write_text("<!doctype html>")
    called = call("runs", "new", "--open")
    assert called.code == 0 and "runs/new/report.html" in called.out
    assert opened[0].startswith("file:///") and opened[0].endswith("/runs/new/report.html")


def test_empty_folder_says_how_to_begin(call: Call) -> None:
    called = call("runs", "--runs", "nothing")
    assert called.code == 0 and "no runs in nothing; onward train makes one" in called.out


def test_misspelt_names_are_one_line_with_the_nearest(call: Call) -> None:
    assert is_one_line(call("runs", "cnn-3"), "no run 'cnn-3'", "mean 'cnn-")
    assert is_one_line(call("runs", "--sort", "val_acuracy"), "did you mean 'val_accuracy'")
    assert is_one_line(call("runs", "--metric", "los"), "no run measured 'los'")
    assert is_one_line(call("runs", "--plot", "a.pdf"), ".pdf", ".svg")
    assert is_one_line(call("runs", "--plot", "no/a.svg"), "there is no folder no")
    assert is_one_line(call("runs", "cnn-1", "cnn-2", "--open"), "--open takes the name of one run")
