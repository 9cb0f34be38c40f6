"""Tuning of training: which engines are candidates, and what a cached result is kept by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError, ProviderError
from onward.losses import CrossEntropy
from onward.measure.tuning import tune_training as tuning
from onward.measure.tuning.trials import CallTimes, Candidate, FirstRun
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import TuningResult
from onward.optimizers import AdamW
from onward.programs.program import Program
from onward.sessions.training.training_program import compile_training
from tests.sessions.training.small import batches, mlp, weights

CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
TORCH, INDUCTOR = "TorchExecutionProvider", "InductorExecutionProvider"
[FEEDS] = batches(1)
NO_ROWS = '{"rows": [], "shapes": {}, "measured": "", "circumstances": {}}'


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The providers of the machine, which a test may change."""
    here = [CPU, OPENVINO, TORCH, INDUCTOR, "ReferenceExecutionProvider"]
    monkeypatch.setattr(tuning, "available", lambda: here)
    monkeypatch.setattr("onward.measure.tuning.tuning_options.available", lambda: here)
    monkeypatch.setattr(tuning, "torch_devices", lambda _: ["cpu"])
    return here


def program(seed: int = 0, **options: Any) -> Program:
    compiled = compile_training(mlp(weights(seed)), CrossEntropy(), AdamW(), options)
    assert compiled.neutral is not None
    return compiled.neutral


# -- candidates -----------------------------------------------------------------------------------


def test_engines_that_train_are_candidates() -> None:
    found = tuning.training_candidates(TuningOptions(threads=2), ["cpu"])
    assert [str(each) for each in found] == [
        "CPU, 2 threads",
        "Torch, device=cpu, 2 threads",
        "Inductor, device=cpu, 2 threads",
    ]


def test_a_gpu_is_tried_before_the_cpu_and_as_cuda_graphs() -> None:
    found = tuning.training_candidates(TuningOptions(), ["cuda", "cpu"])
    assert [str(each) for each in found] == [
        "CPU",
        "Torch, device=cuda",
        "Torch, device=cpu",
        "Inductor, device=cuda",
        "Inductor, device=cpu",
        "Inductor, device=cuda, mode=reduce-overhead",
    ]


def test_only_the_providers_that_were_asked_for_are_candidates() -> None:
    assert tuning.training_engines(TuningOptions(providers=["torch", "cpu"])) == [CPU, TORCH]
    assert tuning.training_candidates(TuningOptions(providers=["cpu"]), []) == [Candidate(CPU)]


@pytest.mark.parametrize(("asked", "named"), [([OPENVINO], OPENVINO), ([], "nothing")])
def test_other_providers_are_refused(asked: list[str], named: str) -> None:
    law = f"auto measures training on {CPU}, {TORCH}, {INDUCTOR}, not on {named}\nname one"
    with pytest.raises(OptionError, match=law):
        tuning.training_engines(TuningOptions(providers=asked))


@pytest.mark.integration
def test_devices_of_torch_are_asked_for_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    import torch

    monkeypatch.setattr(tuning, "_GPU_LIBRARIES", ("*torch*",))
    expected = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    assert tuning.torch_devices([TORCH]) == expected
    assert tuning.torch_devices([CPU]) == []
    monkeypatch.setattr(tuning, "WORKER", "onward.no_such_worker")
    assert tuning.torch_devices([TORCH]) == ["cpu"]


# -- results --------------------------------------------------------------------------------------


class FakeTrial:
    """A trial that agrees with the others; torch is the fastest, and Inductor fails."""

    opened: list[str] = []  # noqa: RUF012

    def __init__(self, folder: Path, candidate: Candidate, feeds: Any, **more: Any) -> None:
        assert (folder / "train.onnx").exists() and more["weights"].read_text() == "state"
        self.candidate = candidate

    def __enter__(self) -> FakeTrial:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def open(self, timeout: float) -> FirstRun:
        self.opened.append(self.candidate.provider)
        if self.candidate.provider == INDUCTOR:
            raise ProviderError("it cannot")
        return FirstRun(1.0, [np.ones(3, np.float32)] * 9)

    def measure(self, seconds: float, *, timeout: float) -> CallTimes:
        return CallTimes([1.0 if self.candidate.provider == TORCH else 2.0] * 3, 100)

    def close(self) -> None: ...


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Tune a program with fake trials; returns the result and the trials that were opened."""
    monkeypatch.setattr(tuning, "Trial", FakeTrial)

    def run(
        program: Program, feeds: Any = None, settings: Any = None, **options: Any
    ) -> tuple[TuningResult, list[str]]:
        monkeypatch.setattr(FakeTrial, "opened", [])
        given = TuningOptions(folder=str(tmp_path / "kept"), **options)
        state = lambda path: path.write_text("state")  # noqa: E731
        result = tuning.tune_training(program, feeds or FEEDS, state, given, settings=settings)
        return result, FakeTrial.opened

    return run


def test_the_fastest_that_agrees_comes_first_and_a_failure_has_its_reason(tune: Any) -> None:
    result, opened = tune(program())
    assert opened == [CPU, TORCH, INDUCTOR]
    assert [row.candidate.provider for row in result.rows] == [TORCH, CPU, INDUCTOR]
    assert result.rows[2].error == "it cannot"


def test_an_engine_that_trains_differently_is_excluded(
    tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_wrong(self: FakeTrial, timeout: float) -> FirstRun:
        loss = 1.0 if self.candidate.provider == CPU else 1.1
        return FirstRun(1.0, [np.full(3, loss, np.float32), *[np.ones(3, np.float32)] * 8])

    monkeypatch.setattr(FakeTrial, "open", open_wrong)
    result, _ = tune(program())
    assert result.rows[0].candidate.provider == CPU
    assert {row.error for row in result.rows[1:]} == {"the loss differs from onnxruntime's"}


@pytest.mark.parametrize(
    "other",
    [
        {"program": program(seed=5)},
        {"feeds": {"labels": FEEDS["labels"], "x": FEEDS["x"] + 1}},
    ],
    ids=["weights", "values"],
)
def test_a_cached_result_serves_other_numbers(tune: Any, other: dict[str, Any]) -> None:
    first, _ = tune(program())
    again, opened = tune(**{"program": program(), **other})
    assert again == first and not opened


@pytest.mark.parametrize(
    "other",
    [
        {"program": program(accumulate=2)},
        {"feeds": {name: array[:8] for name, array in FEEDS.items()}},
        {"feeds": {**FEEDS, "labels": FEEDS["labels"].astype(np.int32)}},
        {"threads": 1},
        {"settings": {"inter_op_num_threads": 2}},
        {"providers": ["cpu", "torch"]},
        {"fresh": True},
    ],
    ids=["program", "shapes", "types", "threads", "settings", "providers", "fresh"],
)
def test_everything_else_is_measured_again(tune: Any, other: dict[str, Any]) -> None:
    tune(program())
    _, opened = tune(**{"program": program(), **other})
    assert opened


def test_another_version_of_an_engine_is_measured(
    tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(program())
    monkeypatch.setattr(tuning, "versions", lambda: {"torch": "99.0"})
    assert tune(program())[1]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": [1]}', '{"rows": 3}', NO_ROWS])
def test_a_damaged_result_is_measured_again(tune: Any, tmp_path: Path, text: str) -> None:
    tune(program())
    [file] = (tmp_path / "kept").iterdir()
    file.write_text(text)
    assert tune(program())[1]
    assert json.loads(file.read_text())["rows"]
