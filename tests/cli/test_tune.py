"""onward tune: its table, its limit, what Ctrl-C leaves, and where its verdict goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.cli import tune as command
from onward.measure.tuning import tune
from onward.measure.tuning.trials import Candidate
from onward.measure.tuning.tune import Row, TuningOptions, TuningResult
from tests.cli.conftest import Call, is_one_line

ROW = Row(Candidate("CPUExecutionProvider"), 0.001, 0.002, 0.25, 50 << 20)


def test_verdict_is_shown(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TuningOptions] = []

    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> TuningResult:
        asked.append(options)
        tell["progress"](0, 1, "CPU")
        return TuningResult([ROW], {"x": [1, 4]}, "today")

    monkeypatch.setattr(command, "measure", measure)
    called = call("tune", model, "--provider", "CPU", "--limit", "9")
    assert called.code == 0 and "1.00 ms" in called.out and "fastest" in called.out
    assert asked[0].limit == 9 and asked[0].providers == ["CPUExecutionProvider"]


def test_ctrl_c_prints_what_was_measured(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> TuningResult:
        tell["finished"](ROW)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", measure)
    called = call("tune", model)
    assert called.code == 130
    assert "ended before its time" in called.out and "1.00 ms" in called.out
    report = json.loads(call("tune", model, "--json").out)
    assert not report["complete"] and report["rows"][0]["median"] == 0.001


def test_bad_options_are_one_line(call: Call, model: Path) -> None:
    assert is_one_line(call("tune", model, "--seconds", "0"), "seconds is a time above 0")
    assert is_one_line(call("tune", model, "--size", "bach=2"), "no open dimension 'bach'")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The measurements that were made; none is real."""
    made: list[Any] = []

    def measure(*given: Any) -> list[Row]:
        made.append(given)
        return [Row(Candidate("CPUExecutionProvider"), 0.001, 0.002, 0.1, 1 << 20)]

    monkeypatch.setattr(tune, "_measure", measure)
    return made


def test_a_folder_that_cannot_be_written_to_is_refused_before_measuring(
    call: Call, model: Path, tmp_path: Path, measured: list[Any]
) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/inner"):
        called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / folder)
        assert is_one_line(called, str(tmp_path / "file"), "cannot be written: ")
        assert "takes it from here" not in called.out
    assert not measured


def test_a_verdict_is_shown_though_it_could_not_be_kept(
    call: Call, model: Path, tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "write_record", lambda *_: False)
    called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / "v")
    assert is_one_line(called, "the verdict could not be kept in", str(tmp_path / "v"), "--folder")
    assert "1.00 ms" in called.out and "takes it from here" not in called.out
    called = call("tune", model, "--size", "batch=2", "--folder", tmp_path / "v", "--json")
    assert called.code == 2 and json.loads(called.out)["kept"] is False
    assert len(measured) == 2


def test_the_folder_is_part_of_what_takes_it_from_here(
    call: Call, model: Path, tmp_path: Path, measured: list[Any]
) -> None:
    folder = tmp_path / "v"
    for _ in range(2):
        called = call("tune", model, "--size", "batch=2", "--folder", folder)
        assert called.code == 0
        said = f'providers=[("auto", {{"folder": "{folder}"}})]) takes it from here.'
        assert said in called.out.replace("\n", "")
    assert len(measured) == 1 and len(list(folder.iterdir())) == 1
