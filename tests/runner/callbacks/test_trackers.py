"""MLflow, wandb and trackio: fakes with the signatures of mlflow 3.17, wandb 0.31, trackio 0.43."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from onward.errors import OptionError, PackageMissing
from onward.runner.callbacks.trackers import TRACKERS, track
from onward.runner.run import INTERRUPTED
from tests.runner.callbacks.fake_run import evaluate, fake_run, make_step

Calls = list[tuple[Any, ...]]


def fake_mlflow(calls: Calls) -> ModuleType:
    module: Any = ModuleType("mlflow")

    def start_run(run_id: str | None = None, run_name: str | None = None) -> Any:
        calls.append(("start", run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "m1"))

    def log_metrics(metrics: dict[str, float], step: int | None = None, run_id: str = "") -> None:
        calls.append(("log", step, sorted(metrics), run_id))

    module.set_experiment = lambda experiment_name: calls.append(("project", experiment_name))
    module.start_run, module.log_metrics = start_run, log_metrics
    module.log_params = lambda params, run_id: calls.append(("config", params["epochs"], run_id))
    module.log_artifact = lambda local_path, run_id: calls.append(("file", Path(local_path).name))
    module.end_run = lambda status="FINISHED": calls.append(("end", status))
    return module


def fake_wandb(calls: Calls) -> ModuleType:
    module: Any = ModuleType("wandb")

    class Run:
        def __init__(self, id: str) -> None:
            self.id = id

        def log(self, data: dict[str, Any], step: int | None = None) -> None:
            calls.append(("log", step, sorted(data), self.id))

        def save(self, glob_str: str, base_path: str, policy: str = "live") -> None:
            calls.append(("file", Path(glob_str).name))

        def finish(self, exit_code: int | None = None) -> None:
            calls.append(("end", exit_code))

    def init(
        project: str,
        name: str,
        config: dict[str, Any],
        id: str | None = None,
        resume: str | None = None,
    ) -> Run:
        calls.append(("start", id, name, resume))
        return Run(id or "w1")

    module.init = init
    return module


def fake_trackio(calls: Calls) -> ModuleType:
    module: Any = ModuleType("trackio")

    class Run:
        def __init__(self, name: str) -> None:
            self.name = name

        def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
            calls.append(("log", step, sorted(metrics), self.name))

        def finish(self) -> None:
            calls.append(("end",))

    def init(
        project: str,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str = "never",
        embed: bool = True,
    ) -> Run:
        calls.append(("start", name, resume))
        return Run(str(name))

    module.init = init
    module.save = lambda glob_str, project=None: calls.append(("file", Path(glob_str).name))
    return module


FAKES = {"mlflow": fake_mlflow, "wandb": fake_wandb, "trackio": fake_trackio}
IDS = {"mlflow": "m1", "wandb": "w1", "trackio": "cnn-1"}
STEP = [
    "data_wait", "epoch", "gradient_norm", "learning_rate", "loss", "memory", "samples_per_second",
]  # fmt: skip


@pytest.fixture(params=FAKES)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Calls]:
    calls: Calls = []
    monkeypatch.setitem(sys.modules, request.param, FAKES[request.param](calls))
    return request.param, calls


def test_numbers_files_and_end(tracker: tuple[str, Calls], tmp_path: Path) -> None:
    name, calls = tracker
    run, callback = fake_run(tmp_path / "cnn-1"), track(name)
    callback.on_start(run)
    for _ in range(3):
        make_step(run, callback)
    evaluate(run, callback, val_loss=0.5)
    run.folder.metrics.write_text("step\n")
    callback.on_end(run)
    logged = [call[1:] for call in calls if call[0] == "log"]
    assert logged == [(2, STEP, IDS[name]), (3, ["val_loss"], IDS[name])]
    assert ("file", "metrics.csv") in calls
    ends = {"mlflow": ("end", "FINISHED"), "wandb": ("end", 0), "trackio": ("end",)}
    assert calls[-1] == ends[name]


def test_resumed_run_continues_the_same_run(tracker: tuple[str, Calls], tmp_path: Path) -> None:
    name, calls = tracker
    run, first = fake_run(tmp_path / "cnn-1"), track(name)
    first.on_start(run)
    run.stopped = INTERRUPTED
    first.on_end(run)
    ends = {"mlflow": ("end", "KILLED"), "wandb": ("end", 1), "trackio": ("end",)}
    assert calls[-1] == ends[name]
    assert first.state() == {"id": IDS[name]}
    calls.clear()
    run.step, second = 10, track(name)
    second.restore(first.state())
    second.on_start(run)
    starts = {
        "mlflow": ("start", "m1", None),
        "wandb": ("start", "w1", "cnn-1", "allow"),
        "trackio": ("start", "cnn-1", "allow"),
    }
    assert starts[name] in calls
    assert not [call for call in calls if call[0] == "config"]  # cannot be changed


@pytest.mark.parametrize("name", TRACKERS)
def test_missing_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PackageMissing, match=f"pip install {name}"):
        track(name)


def test_unknown_tracker() -> None:
    with pytest.raises(OptionError, match="did you mean 'mlflow'"):
        track("mlflo")
