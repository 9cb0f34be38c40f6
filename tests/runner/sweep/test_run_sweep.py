"""Sweeps in this process, with a quadratic bowl for training."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import FileExists, FileMissing, OptionError, PackageMissing, SweepFailed
from onward.runner.callback import Callback
from onward.runner.sweep.study_journal import JOURNAL, open_study, owning, quiet_optuna
from onward.runner.sweep.sweep_result import SweepResult
from onward.runner.sweep.sweep_trial import TrialResult
from tests.runner.sweep.fake_trials import MONITOR, quadratic

SPACE = {"learning_rate": "1e-3..1:log", "optimizer": ["adamw", "sgd"]}


def sweep(where: Path, **options: Any) -> SweepResult:
    if "ablate" not in options:
        options = {"search": SPACE, **options}
    given = {"run_trial": quadratic, "trials": 6, "folder": where / "s", **options}
    return onward.sweep("m.onnx", "d.csv", target="y", **given)


def test_best_trial_is_found_and_written(tmp_path: Path) -> None:
    rows = []
    result = sweep(tmp_path, trials=16, finished=rows.append)
    assert len(rows) == len(result.rows) == 16
    best = result.best
    assert best is not None and best.value is not None and best.value < 0.2
    finished = [row.value for row in result.rows if row.state == "finished"]
    assert best.value == finished[0] == min(finished) and result.monitor == MONITOR
    written = tomllib.loads((tmp_path / "s/best.toml").read_text())
    assert written["learning_rate"] == best.settings["learning_rate"]
    assert (written["model"], written["data"], written["target"]) == ("m.onnx", "d.csv", "y")
    assert not {"runs", "name", "threads"} & set(written)
    assert result.command == f"onward train --config {tmp_path}/s/best.toml"
    assert next(iter(result.importances)) == "learning_rate"
    assert best.run.endswith(f"runs/trial-{best.number:04d}")
    assert any(row.state == "pruned" for row in result.rows)
    assert json.dumps(result.to_json())


def test_higher_is_better_where_the_run_says_so(tmp_path: Path) -> None:
    def accuracy(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
        return TrialResult({"val_accuracy": settings["epochs"] / 10}, "val_accuracy", True)

    result = sweep(tmp_path, search={"epochs": [3, 9, 1]}, grid=True, run_trial=accuracy)
    assert [row.value for row in result.rows] == [0.9, 0.3, 0.1]
    assert result.best is not None and result.best.settings == {"epochs": 9}


def test_seed_decides_the_search_also_after_resuming(tmp_path: Path) -> None:
    def values(result: SweepResult) -> list[Any]:
        return [row.settings for row in sorted(result.rows, key=lambda row: row.number)]

    whole = sweep(tmp_path / "a", trials=7)
    sweep(tmp_path / "b", trials=3)
    assert values(sweep(tmp_path / "b", trials=7, resume=True)) == values(whole)
    assert values(sweep(tmp_path / "c", trials=7, seed=1)) != values(whole)


def test_interrupted_trial_is_tried_again(tmp_path: Path) -> None:
    seen: list[float] = []

    def interrupted(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
        seen.append(settings["learning_rate"])
        if len(seen) == 3:
            raise KeyboardInterrupt
        return quadratic(settings, callbacks)

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, run_trial=interrupted)
    assert (tmp_path / "s/best.toml").exists() and (tmp_path / "s/sweep.html").exists()
    result = sweep(tmp_path, run_trial=interrupted, resume=True)
    assert seen[3] == seen[2] and len(seen) == 7
    states = [row.state for row in result.rows]
    assert states.count("interrupted") == 1 and len(states) == 7


def test_killed_sweep_is_repaired(tmp_path: Path) -> None:
    sweep(tmp_path, trials=2)
    journal = tmp_path / "s" / JOURNAL
    with quiet_optuna() as optuna:
        study = open_study(tmp_path / "s", "none")
        study.ask({"learning_rate": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)})
    with open(journal, "ab") as file:
        file.write(b'{"op_code":5,"wor')  # cut off
    (tmp_path / "s" / f"{JOURNAL}.lock").symlink_to(journal)
    result = sweep(tmp_path, trials=4, resume=True)
    states = [row.state for row in result.rows]
    assert len(states) == 5 and states.count("interrupted") == 1


def test_failing_trial_is_recorded_and_others_run(tmp_path: Path) -> None:
    def sometimes(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
        if settings["epochs"] == 2:
            raise OptionError("2 is odd\nuse another")
        loss = np.nan if settings["epochs"] == 3 else 1.0
        return TrialResult({MONITOR: loss}, MONITOR)

    result = sweep(tmp_path, search={"epochs": [1, 2, 3, 4]}, grid=True, run_trial=sometimes)
    errors = {row.settings["epochs"]: row.error for row in result.rows}
    assert errors[1] == errors[4] == ""
    assert errors[2] == "2 is odd; use another" and errors[3] == "ArithmeticError: val_loss is nan"


def test_same_error_of_the_first_trials_ends_the_sweep(tmp_path: Path) -> None:
    calls: list[int] = []

    def broken(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
        calls.append(1)
        raise ValueError(f"no column 'y' in trial {len(calls)}")

    with pytest.raises(SweepFailed, match="3 trials failed with the same error: ValueError"):
        sweep(tmp_path, run_trial=broken)
    assert len(calls) == 3


def test_run_without_the_monitored_number_fails(tmp_path: Path) -> None:
    with pytest.raises(SweepFailed, match=r"no number 'val_loss'.*--validation"):
        sweep(tmp_path, trials=2, run_trial=lambda settings, callbacks: TrialResult({}, MONITOR))


def test_trials_that_monitor_different_numbers_are_not_compared(tmp_path: Path) -> None:
    def changing(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
        monitor = "val_loss" if settings["epochs"] == 1 else "val_f1"
        return TrialResult({monitor: 1.0}, monitor)

    result = sweep(tmp_path, search={"epochs": [1, 2]}, grid=True, run_trial=changing)
    assert "monitors val_f1, other trials val_loss" in result.rows[1].error


def test_ablation_runs_the_base_and_each_change(tmp_path: Path) -> None:
    ablate = {"optimizer": "sgd,lion", "learning_rate": "0.1,0.2"}
    result = sweep(tmp_path, ablate=ablate, learning_rate=0.1, prune="none")
    rows = sorted(result.rows, key=lambda row: row.number)
    assert [tuple(row.settings.values()) for row in rows] == [
        ("adamw", 0.1),
        ("sgd", 0.1),
        ("lion", 0.1),
        ("adamw", 0.2),
    ]
    assert result.best is not None and result.best.number == 0


def test_no_trial_starts_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(SweepFailed, match="no trial of the sweep finished: none ran"):
        sweep(tmp_path, timeout=1e-9)


def test_folder_is_never_overwritten_and_must_fit(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="no sweep at"):
        sweep(tmp_path, resume=True)
    sweep(tmp_path, trials=1)
    with pytest.raises(FileExists, match="continue it with --resume"):
        sweep(tmp_path)
    with pytest.raises(OptionError, match=r"has learning_rate='0.001..1:log', not '0.1..1'"):
        sweep(tmp_path, resume=True, search={**SPACE, "learning_rate": "0.1..1"})
    with pytest.raises(OptionError, match="has epochs=None, not 5"):
        sweep(tmp_path, resume=True, epochs=5)
    with owning(tmp_path / "s"), pytest.raises(OptionError, match="another process runs the sweep"):
        sweep(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": {}}, "there is nothing to search"),
        ({"ablate": {"flip": "true"}, "search": SPACE}, "both search and ablate"),
        ({"learning_rat": 1}, "there is no setting 'learning_rat'"),
        ({"runs": "x"}, "runs cannot be set in a sweep"),
        ({"workers": 2}, "import run_trial by name"),
        ({"workers": 2, "validation": np.ones(3)}, "validation is in this process's memory"),
        ({"workers": 0}, "workers must be a whole number, at least 1"),
        ({"prune": "medium"}, "prune must be one of 'median'"),
        ({"resume": True, "folder": None}, "which sweep should continue"),
        ({"run_trial": "nowhere:f"}, "run_trial 'nowhere:f' cannot be imported"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        sweep(tmp_path, **options)
    assert message in str(error.value)


def test_missing_optuna_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(PackageMissing, match=r"onward\[sweep\]"):
        sweep(tmp_path)
