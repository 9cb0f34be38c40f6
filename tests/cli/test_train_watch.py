"""onward train --watch: files of a folder are trained on, and the better model is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import onward
from onward.cli import train as train_verb
from onward.runner import watch_models
from onward.runner.run import INTERRUPTED
from tests.cli.conftest import Call, Called, is_one_line


def write_rows(path: Path, count: int, seed: int) -> Path:
    x = np.random.default_rng(seed).normal(size=(count, 2))
    lines = [f"{a:.3f},{b:.3f},{'high' if a + b > 0 else 'low'}" for a, b in x]
    path.write_text("\n".join(["first,second,kind", *lines, ""]))
    return path


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an untrained model, a little data and a folder of new data."""
    monkeypatch.chdir(tmp_path)
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 2))
    w = op.initializer("w", np.array([[-1, 1], [-0.5, 0.5]], np.float32))
    onward.save(op.model(scores=op.MatMul(x, w)), "m.onnx")
    write_rows(tmp_path / "base.csv", 40, seed=1)
    write_rows(tmp_path / "held.csv", 40, seed=2)
    (tmp_path / "incoming").mkdir()
    return tmp_path


@pytest.fixture
def watch(call: Call, work: Path) -> Any:
    def run(*arguments: object) -> Called:
        learn = ("--optimizer", "sgd", "--learning-rate", 0.5, "--epochs", 1, "--batch-size", 16)
        folder = ("--watch", "incoming", "--interval", 0.01, "--once")
        return call("train", *arguments, *learn, *folder)

    return run


def decisions(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.mark.integration
def test_first_training_is_followed_by_the_files_of_the_folder(watch: Any, work: Path) -> None:
    write_rows(work / "incoming/monday.csv", 200, seed=3)
    (work / "incoming/tuesday.csv").write_text("first,second\n1,2\n")
    first = ("m.onnx", "--data", "base.csv", "--validation-split", 0.5, "--target", "kind")
    called = watch(*first, "--monitor", "val_loss")
    assert called.code == 0, called.err
    assert "monday.csv: promoted (val_loss" in called.out
    assert "tuesday.csv: rejected (the data has no column 'kind'" in called.out
    assert "2 files processed, 1 promoted" in called.out
    run = work / "runs/m-1"
    monday, _ = decisions(run / "watch/watch.jsonl")
    assert monday["candidate"] < monday["current"]
    kept = onward.graph.files.load(run / "model.onnx").graph.initializers["w"]
    better = onward.graph.files.load(run / "current.onnx").graph.initializers["w"]
    assert not np.array_equal(kept.const_value.numpy(), better.const_value.numpy())
    again = watch(*first, "--monitor", "val_loss", "--resume")
    assert again.code == 0 and "0 files processed" in again.out, again


@pytest.mark.integration
def test_exported_model_is_watched_without_data(watch: Any, call: Call, work: Path) -> None:
    base = ("--data", "base.csv", "--target", "kind", "--epochs", 1)
    assert call("train", "m.onnx", *base, "--name", "a").code == 0
    served = Path("runs/a/model.onnx")
    before = served.read_bytes()
    write_rows(work / "incoming/new.csv", 40, seed=4)
    called = watch(served, "--validation", "held.csv", "--min-improvement", 5)
    assert called.code == 0 and "new.csv: kept (val_accuracy" in called.out, called
    assert served.read_bytes() == before
    assert Path("runs/a/model.onnx.watch/watch.jsonl").is_file()


def test_ctrl_c_within_a_fine_tuning_ends_the_watch(
    watch: Any, call: Call, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = SimpleNamespace(stopped=INTERRUPTED)
    monkeypatch.setattr(watch_models, "train", lambda *given, **settings: stopped)
    write_rows(work / "incoming/new.csv", 40, seed=4)
    called = watch("m.onnx", "--data", "base.csv")
    assert called.code == 0 and "0 files processed" in called.out, called
    assert not (work / "runs/m-1/watch/watch.jsonl").exists()  # the next start processes it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "base.csv", "--once"], ["--once is a setting of --watch"]),
        (["--data", "base.csv", "--watch", "nowhere"], ["--watch: nowhere is not a folder"]),
        (["--watch", "incoming"], ["no held-out rows", "give them: --validation"]),
        (["--watch", "incoming", "--validation", "held.csv"], ["how its inputs are made"]),
        (
            ["--data", "base.csv", "--watch", "incoming", "--quantization-aware"],
            ["leave --quantization-aware out"],
        ),
        (
            ["--data", "base.csv", "--watch", "incoming", "--validation-split", "0"],
            ["no held-out rows"],
        ),
    ],
)
def test_watch_that_cannot_work_is_refused_before_training(
    arguments: list[str],
    words: list[str],
    call: Call,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train_verb, "train_model", None)
    assert is_one_line(call("train", "m.onnx", *arguments), *words)
