"""onward tune: its table, its limit, Ctrl-C, and where its result is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.cli import tune as command
from onward.measure.tuning import tune, tuning_result
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import Row, TuningResult
from tests.cli.conftest import Call, is_one_line

ROW = Row(Candidate("CPUExecutionProvider"), 0.001, 0.002, 0.25, 50 << 20)


def test_result_is_shown(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TuningOptions] = []

    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> TuningResult:
        asked.append(options)
        tell["progress"](0, 1, "CPU")
        return TuningResult([ROW], {"x": [1, 4]}, "today")

    monkeypatch.setattr(command, "measure", measure)
    called = call("tune", model, "--provider", "CPU", "--limit", "9")
    assert called.code == 0 and "1.00 ms" in called.out and "fastest" in called.out
    assert asked[0].limit == 9 and asked[0].providers == ["CPUExecutionProvider"]


def test_ctrl_c_prints_the_measurements_so_far(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> TuningResult:
        tell["finished"](ROW)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", measure)
    called = call("tune", model)
    assert called.code == 130
    assert (
        "interrupted: these are the measurements so far" in called.out and "1.00 ms" in called.out
    )
    report = json.loads(call("tune", model, "--json").out)
    assert not report["complete"] and report["rows"][0]["median"] == 0.001


def test_bad_options_are_one_line(call: Call, model: Path) -> None:
    assert is_one_line(call("tune", model, "--seconds", "0"), "seconds must be a time above 0")
    assert is_one_line(call("tune", model, "--size", "bach=2"), "no dynamic dimension 'bach'")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the measurements; none is real."""
    made: list[Any] = []

    def measure(*given: Any) -> list[Row]:
        made.append(given)
        return [Row(Candidate("CPUExecutionProvider"), 0.001, 0.002, 0.1, 1 << 20)]

    monkeypatch.setattr(tune, "race", measure)
    return made


def test_read_only_folder_is_an_error_before_measuring(
    call: Call, model: Path, tmp_path: Path, measured: list[Any]
) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/inner"):
        called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / folder)
        assert is_one_line(called, str(tmp_path / "file"), "cannot be written: ")
        assert "uses this result" not in called.out
    assert not measured


def test_result_that_cannot_be_stored_is_shown(
    call: Call, model: Path, tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_result, "write_record", lambda *_: False)
    called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / "v")
    assert is_one_line(called, "the result could not be stored in", str(tmp_path / "v"), "--folder")
    assert "1.00 ms" in called.out and "uses this result" not in called.out
    called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / "v", "--json")
    assert called.code == 2 and json.loads(called.out)["kept"] is False
    assert len(measured) == 2


def test_folder_is_part_of_the_printed_session(
    call: Call, model: Path, tmp_path: Path, measured: list[Any]
) -> None:
    folder = tmp_path / "v"
    for _ in range(2):
        called = call("tune", model, "--size", "batch=2", "--folder", folder)
        assert called.code == 0
        line = f'providers=[("auto", {{"folder": "{folder}"}})]) uses this result.'
        assert line in called.out.replace("\n", "")
    assert len(measured) == 1 and len(list(folder.iterdir())) == 1
