"""onward train: from a model and a data file to a trained model in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onward
from onward.runner.callback import Callback
from onward.runner.callbacks.csv_log import read_metrics
from onward.runner.evaluate import evaluate
from tests.cli.conftest import Call
from tests.cli.training_rows import GIVEN, write_rows

FILES = {
    "config.toml", "command.txt", "run.json", "metrics.csv", "checkpoints", "model.onnx",
    "report.html", "curves.png", "confusion.png",
}  # fmt: skip
_HERE = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with m.onnx (4 features, 3 classes) and rows.csv, which is the current one."""
    monkeypatch.chdir(tmp_path)
    _write_files(tmp_path)
    return tmp_path


def _write_files(folder: Path) -> None:
    model = onward.new_model("mlp", features=4, hidden=(8,), classes=3)
    onward.save(model, folder / "m.onnx")
    write_rows(folder / "rows.csv")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("alone")
    _write_files(folder)
    run = onward.train(
        folder / "m.onnx", folder / "rows.csv", target="kind", epochs=2, runs=str(folder / "runs")
    )
    return _read_weights(run.model)


def test_the_files_of_a_run_are_named_at_its_end(call: Call) -> None:
    called = call("train", *GIVEN, "--lora", "2", "--keep-adapter", "--profile", "1:2")
    for name in ("model.onnx", "adapter.safetensors", "report.html", "profile/profile.html"):
        assert f"/{name}" in called.out
    assert "profile.html" not in call("train", *GIVEN).out


def test_train_leaves_model_numbers_and_report(call: Call) -> None:
    called = call("train", *GIVEN, "--name", "first")
    assert called.code == 0 and called.err == ""
    run = Path("runs/first")
    assert {each.name for each in run.iterdir()} >= FILES
    assert (run / "command.txt").read_text() == f"onward train {' '.join(GIVEN)} --name first\n"
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished" and record["step"] == record["steps"] == 4
    assert [step for step, _ in read_metrics(run / "metrics.csv")["val_loss"]] == [2, 4]
    model = onward.load(run / "model.onnx")
    assert [str(each.name) for each in model.graph.outputs] == ["scores"]
    for shown in ("cross_entropy", "target", "validation rows", "val_accuracy", "first/model.onnx"):
        assert shown in called.out, shown


def test_output_that_is_no_terminal_is_plain_lines(call: Call) -> None:
    out = call("train", *GIVEN).out
    assert "\x1b" not in out and "\r" not in out
    assert re.search(r"^epoch 2, step 4: val_loss [\d.]+, val_accuracy", out, re.MULTILINE)


@pytest.mark.integration
def test_second_run_has_the_next_number(call: Call) -> None:
    assert call("train", *GIVEN).code == call("train", *GIVEN).code == 0
    assert sorted(os.listdir("runs")) == ["m-1", "m-2"]
    assert _weights("m-1") == _weights("m-2")


@pytest.mark.integration
def test_weights_of_the_best_evaluation_are_exported(call: Call) -> None:
    given = [*GIVEN, "--schedule", "constant", "--learning-rate", "1e-6", "--evaluate-every", "1"]
    assert call("train", *given, "--name", "all").code == 0
    best = json.loads(Path("runs/all/run.json").read_text())["best"]["step"]  # of equal accuracies
    steps = ["--max-steps", str(best), "--export", "last"]
    assert call("train", *given, *steps, "--name", "until").code == 0
    assert _weights("all") == _weights("until")


def test_plan_prints_the_memory_and_trains_nothing(call: Call) -> None:
    done = call("train", *GIVEN, "--memory-level", "2", "--plan")
    assert "wait for the backward" in done.out and not Path("runs").exists()
    done = call("train", *GIVEN, "--memory-budget", "10B", "--plan")
    assert done.code == 2 and "a memory budget of 10 B is too small" in done.err


def test_show_config_prints_every_setting_and_trains_nothing(call: Call) -> None:
    called = call("train", *GIVEN, "--show-config")
    assert called.code == 0 and not Path("runs").exists()
    assert 'target = "kind"' in called.out and 'optimizer = "adamw"' in called.out
    Path("all.toml").write_text(called.out)
    assert call("train", "--config", "all.toml", "--show-config").out == called.out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.toml", 'model = "m.onnx"\ndata = "rows.csv"\ntarget = "kind"\nepochs = 9\n'),
        ("run.yaml", "model: m.onnx\ndata: rows.csv\ntarget: kind\nepochs: 9\n"),
    ],
)
def test_flag_replaces_setting_of_config(call: Call, name: str, text: str) -> None:
    Path(name).write_text(text)
    called = call("train", "--config", name, "--max-steps", "1", "--epochs", "1")
    assert called.code == 0, called.err
    assert "epochs = 1\nmax_steps = 1" in Path("runs/m-1/config.toml").read_text()


def test_help_has_examples_and_flags(call: Call) -> None:
    called = call("train", "--help")
    assert called.code == 0
    assert "onward train model.onnx --data" in called.out and "--learning-rate" in called.out


class Send(Callback):
    """Sends this process a signal at a step, or at the first evaluation."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGINT) -> None:
        self.step, self.number = step, number

    def on_start(self, run: object) -> None:
        if self.step == 0:
            os.kill(os.getpid(), self.number)

    def on_step(self, run: object, record: object) -> None:
        if getattr(record, "number", None) == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("step", "number"), [(0, signal.SIGINT), (3, signal.SIGINT), (3, signal.SIGTERM)]
)
def test_interrupted_run_is_resumed_bit_for_bit(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    alone: dict[str, bytes],
    step: int,
    number: signal.Signals,
) -> None:
    with monkeypatch.context() as patched:
        _add_callback(patched, Send(step, number))
        called = call("train", *GIVEN, "--name", "other")
    assert called.code == 130 and "Traceback" not in called.err
    assert f"interrupted at step {step}; the same command with --resume" in called.out + called.err
    assert json.loads(Path("runs/other/run.json").read_text())["status"] == "interrupted"
    called = call("train", *GIVEN, "--name", "other", "--resume")
    assert called.code == 0, called.err
    assert _weights("other") == alone


def test_interruption_during_evaluation_is_resumed(
    call: Call, monkeypatch: pytest.MonkeyPatch, alone: dict[str, bytes]
) -> None:
    def interrupted(run: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(run)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("onward.runner.loop.evaluate", interrupted)
        assert call("train", *GIVEN, "--name", "other").code == 130
    assert call("train", *GIVEN, "--name", "other", "--resume").code == 0
    assert _weights("other") == alone


def test_second_interruption_ends_at_once_and_loses_no_checkpoint(
    call: Call, monkeypatch: pytest.MonkeyPatch, alone: dict[str, bytes]
) -> None:
    with monkeypatch.context() as patched:
        _add_callback(patched, Send(3), Send(3))
        called = call("train", *GIVEN, "--name", "other")
    assert called.code == 130 and "Traceback" not in called.err
    assert json.loads(Path("runs/other/run.json").read_text())["status"] == "interrupted"
    assert call("train", *GIVEN, "--name", "other", "--resume").code == 0
    assert _weights("other") == alone


@pytest.mark.integration
def test_process_that_is_interrupted_ends_with_130(folder: Path) -> None:
    given = [*GIVEN, "--epochs", "100000", "--log-every", "1", "--threads", "1"]
    command = [sys.executable, "-m", "onward", "train", *given]
    environment = {**os.environ, "PYTHONPATH": str(_HERE)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if "step" in line and "loss" in line:
                break
        process.send_signal(signal.SIGINT)
        output = process.stdout.read() + process.stderr.read()
    assert process.returncode == 130 and "--resume continues" in output


def _add_callback(monkeypatch: pytest.MonkeyPatch, *added: Callback) -> None:
    """Let `onward train` have more callbacks."""
    from onward.runner import train

    plain = train.choose_callbacks
    monkeypatch.setattr(train, "choose_callbacks", lambda *given: [*plain(*given), *added])


def _weights(name: str) -> dict[str, bytes]:
    return _read_weights(Path("runs", name, "model.onnx"))


def _read_weights(path: Path) -> dict[str, bytes]:
    found = onward.load(path).graph.initializers.items()
    return {key: each.const_value.numpy().tobytes() for key, each in found if each.const_value}


def test_nproc_starts_the_same_command_in_processes(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def run_local(command: list[str], nproc: int, **settings: Any) -> int:
        started.append((command, nproc, settings["max_restarts"]))
        return 3

    monkeypatch.setattr("onward.cli.train.run_local", run_local)
    given = ("train", *GIVEN, "--nproc", "2", "--max-restarts", "1")
    assert call(*given).code == 3
    assert started == [([sys.executable, "-m", "onward", *given], 2, 1)]
    assert not Path("runs").exists()


def test_processes_that_cannot_train_together_are_refused(call: Call) -> None:
    Path("incoming").mkdir()
    called = call("train", *GIVEN, "--nproc", "2", "--watch", "incoming")
    assert called.code == 2 and "--watch trains in one process" in called.err
    called = call("train", *GIVEN, "--shard", "2")
    assert called.code == 2 and "shard=2 needs as many processes, but there is one" in called.err
