"""onward tune: its table, its limit, and what Ctrl-C leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.cli import tune as command
from onward.sessions.tuning.trials import Candidate
from onward.sessions.tuning.verdicts import Row, TuningOptions, Verdict
from tests.cli.conftest import Call, is_one_line

ROW = Row(Candidate("CPUExecutionProvider"), 0.001, 0.002, 0.25, 50 << 20)


def test_verdict_is_shown(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TuningOptions] = []

    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> Verdict:
        asked.append(options)
        tell["progress"](0, 1, "CPU")
        return Verdict([ROW], {"x": [1, 4]}, "today")

    monkeypatch.setattr(command, "measure", measure)
    called = call("tune", model, "--provider", "CPU", "--limit", "9")
    assert called.code == 0 and "1.00 ms" in called.out and "fastest" in called.out
    assert asked[0].limit == 9 and asked[0].providers == ["CPUExecutionProvider"]


def test_ctrl_c_prints_what_was_measured(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(path: Path, feeds: Any, options: TuningOptions, **tell: Any) -> Verdict:
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
