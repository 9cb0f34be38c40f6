"""onward bench: its table, its JSON, its limits and its errors. No time is asserted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import DeadlineExceeded, ProviderError
from onward.measure import alternating_trials
from onward.measure.tuning.trials import BARE, CallTimes, Candidate, FirstRun
from tests.cli.conftest import Call, is_one_line


class FakeTrial:
    """A trial without a process: torch is slower and has other outputs."""

    opened: Sequence[Candidate] = ()

    def __init__(self, model: Path, candidate: Candidate, feeds: dict[str, Any]) -> None:
        self.candidate = candidate

    def __enter__(self) -> FakeTrial:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def open(self, timeout: float) -> FirstRun:
        if self.candidate.provider.startswith("Inductor"):
            raise ProviderError("it broke\nin two lines")
        wrong = self.candidate.provider.startswith("Torch")
        return FirstRun(0.25, [np.ones(3) + wrong])

    def measure(self, seconds: float, timeout: float) -> CallTimes:
        each = 0.002 if self.candidate.provider.startswith("Torch") else 0.001
        return CallTimes([each] * 4, 50 << 20)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternating_trials, "Trial", FakeTrial)


def arguments(*more: object) -> list[object]:
    pytest.importorskip("torch")
    return ["--provider", "cpu", "--provider", "torch", "--provider", "inductor", *more]


@pytest.mark.usefixtures("fake")
def test_table_has_a_row_for_each_candidate(call: Call, model: Path) -> None:
    called = call("bench", model, *arguments("--size", "batch=4"))
    assert called.code == 0
    for word in (BARE, "CPU", "Torch", "1.00 ms", "2.00 ms", "1,000.0", "4,000.0", "50.0 MiB"):
        assert word in called.out, word
    assert "1.0e+00 !" in called.out and "Inductor: it broke" in called.out


@pytest.mark.usefixtures("fake")
def test_json_has_every_measurement(call: Call, model: Path) -> None:
    report = json.loads(call("bench", model, *arguments("--json", "--size", "batch=4")).out)
    assert report["batch"] == 4 and report["complete"]
    bare, cpu, torch, inductor = report["results"]
    assert bare["provider"] == BARE and bare["same"] and round(bare["items_per_second"]) == 4000
    assert round(cpu["median"], 6) == 0.001 and cpu["runs"] == 20 and cpu["first_run"] == 0.25
    assert not torch["same"] and torch["max_absolute_error"] == 1
    assert inductor["error"] == "it broke" and "median" not in inductor


@pytest.mark.usefixtures("fake")
def test_each_thread_count_is_a_row(call: Call, model: Path) -> None:
    report = json.loads(call("bench", model, "--provider", "cpu", "--threads", "1,2", "--json").out)
    assert [row["threads"] for row in report["results"]] == [1, 2, 1, 2]


@pytest.mark.usefixtures("fake")
def test_ctrl_c_prints_the_measurements_so_far(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    calls: list[float] = []

    def measure(self: FakeTrial, seconds: float, timeout: float) -> CallTimes:
        calls.append(seconds)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return CallTimes([0.001], 1 << 20)

    monkeypatch.setattr(FakeTrial, "measure", measure)
    called = call("bench", model, "--provider", "cpu", "--provider", "torch")
    assert called.code == 130
    assert "interrupted: these are the measurements so far" in called.out and "CPU" in called.out


@pytest.mark.usefixtures("fake")
def test_ctrl_c_while_opening_prints_the_earlier_candidates(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    def open_it(self: FakeTrial, timeout: float) -> FirstRun:
        if self.candidate.provider.startswith("Torch"):
            raise KeyboardInterrupt
        return FirstRun(0.25, [np.ones(3)])

    monkeypatch.setattr(FakeTrial, "open", open_it)
    called = call("bench", model, "--provider", "cpu", "--provider", "torch")
    assert called.code == 130 and "1.00 ms" in called.out and "Torch" not in called.out
    report = json.loads(call("bench", model, "--provider", "torch", "--json").out)
    assert not report["complete"] and "median" in report["results"][0]


@pytest.mark.usefixtures("fake")
def test_candidate_over_the_limit_is_stopped_and_the_others_are_shown(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def open_it(self: FakeTrial, timeout: float) -> FirstRun:
        given.append(timeout)
        if self.candidate.provider.startswith("Torch"):
            raise DeadlineExceeded("Torch took longer than 7 s")
        return FirstRun(0.25, [np.ones(3)])

    monkeypatch.setattr(FakeTrial, "open", open_it)
    called = call("bench", model, *arguments("--limit", "7", "--seconds", "1"))
    assert called.code == 0 and "1.00 ms" in called.out
    assert "Torch: not done within its limit of 7 s" in called.out
    assert given == [8.0] * 4  # the limit plus the measuring time


@pytest.mark.usefixtures("fake")
def test_model_that_no_provider_runs_is_one_line(
    call: Call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeTrial, timeout: float) -> FirstRun:
        raise ProviderError("no")

    monkeypatch.setattr(FakeTrial, "open", refuse)
    assert is_one_line(call("bench", model, "--provider", "cpu"), "no provider ran this model: no")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "two"], "--threads takes counts"),
        (["--provider", "auto"], "onward tune"),
        (["--provider", "frob"], "no provider 'frob'"),
        (["--size", "bach=1"], "no dynamic dimension"),
        (["none.npz"], "no feeds file"),
        (["--seconds", "-1"], "--seconds"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_bad_arguments_are_one_line(
    call: Call, model: Path, arguments: list[str], message: str
) -> None:
    assert is_one_line(call("bench", model, *arguments), message)


def test_bench_measures_in_real_processes(call: Call, model: Path) -> None:
    called = call("bench", model, "--provider", "cpu", "--seconds", "0", "--json")
    report = json.loads(called.out)
    assert [row["error"] for row in report["results"]] == [None, None]
    assert all(row["runs"] >= 15 and row["same"] for row in report["results"])
