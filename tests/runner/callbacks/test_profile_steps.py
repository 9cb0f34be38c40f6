"""Profiling a range of steps of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError
from onward.measure.profile import report
from onward.measure.profile.roofline import Ceilings
from onward.runner.callbacks.profile_steps import ProfileSteps, read_steps
from tests.runner.callbacks.fake_run import fake_run, make_session, make_step


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring this machine's ceilings takes seconds."""
    ceilings = Ceilings({"float32": 1e10}, 1e10, 1e-6)
    monkeypatch.setattr(report, "find_ceilings", lambda *_, **__: ceilings)


def profile(folder: Path, steps: str, count: int, **options: Any) -> Any:
    run = fake_run(folder, session=make_session(**options))
    run.clock = time.perf_counter
    callback = ProfileSteps(steps)
    callback.on_start(run)
    for _ in range(count):
        make_step(run, callback)
    callback.on_end(run)
    return run


def events(run: Any) -> list[dict[str, Any]]:
    found = json.loads((run.folder.path / "profile" / "trace.json").read_text())
    return list(found["traceEvents"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_page_and_trace_show_forward_backward_and_update(tmp_path: Path, accumulate: int) -> None:
    run = profile(tmp_path, "3:5", 6, accumulate=accumulate)
    found = events(run)
    operators = {event["cat"] for event in found}
    assert {"MatMul", "Exp", "ScatterElements", "Gemm", "Sqrt"} <= operators  # AdamW's root
    assert {event["args"]["iteration"] for event in found} == {0, 1}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in found)
    page = (run.folder.path / "profile" / "profile.html").read_text()
    assert '"first": 3, "last": 5' in page and f"{tmp_path.name}, a step" in page
    assert "__DATA__" not in page and "https://" not in page


def test_run_is_not_changed_by_its_profile(tmp_path: Path) -> None:
    plain = fake_run(tmp_path / "plain", session=make_session())
    for _ in range(5):
        make_step(plain)
    run = profile(tmp_path / "profiled", "1:4", 5)
    for name, tensor in plain.session.parameters.items():
        np.testing.assert_array_equal(run.session.parameters[name], tensor)


def test_run_that_ends_early_shows_what_was_measured(tmp_path: Path) -> None:
    run = profile(tmp_path, "2:20", 3)
    assert {event["args"]["iteration"] for event in events(run)} == {0, 1}


def test_resumed_run_after_the_range_has_no_profile(tmp_path: Path) -> None:
    run = fake_run(tmp_path, session=make_session())
    run.step = 7
    callback = ProfileSteps("3:5")
    callback.on_start(run)
    make_step(run, callback)
    callback.on_end(run)
    assert not (tmp_path / "profile").exists()


def test_resumed_run_inside_the_range_profiles_the_rest(tmp_path: Path) -> None:
    run = fake_run(tmp_path, session=make_session())
    run.clock, run.step = time.perf_counter, 3
    callback = ProfileSteps("3:6")
    callback.on_start(run)
    for _ in range(4):
        make_step(run, callback)
    assert '"first": 4, "last": 6' in (tmp_path / "profile" / "profile.html").read_text()


def test_engine_without_records_profiles_forward_and_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.runner.callbacks.profile_steps.runs_in_torch", lambda _: True)
    run = profile(tmp_path, "1:3", 3)
    operators = {event["cat"] for event in events(run)}
    assert "Sqrt" not in operators and len(operators) > 3
    page = (run.folder.path / "profile" / "profile.html").read_text()
    assert "a step (forward and backward)" in page


@pytest.mark.parametrize("text", ["", "5", "a:b", "5:", "-1:3", "1.5:3"])
def test_range_is_two_numbers(text: str) -> None:
    with pytest.raises(OptionError, match="profile takes FIRST:LAST, such as 100:120"):
        read_steps(text)


@pytest.mark.parametrize("text", ["0:5", "5:5", "7:3"])
def test_empty_range(text: str) -> None:
    with pytest.raises(OptionError, match=f"{text} contains no step"):
        ProfileSteps(text)


def test_range_after_the_last_step(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the run has 20 steps"):
        ProfileSteps("30:40").on_start(fake_run(tmp_path))
