"""onward demo: it trains, exports, compares providers and lists what it wrote."""

from __future__ import annotations

import io
import re
import shlex
import signal
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.cli import demo
from onward.cli.demo_epochs import DemoEpochs, EpochSummary, epoch_line
from onward.cli.main import main
from onward.runner.digits import TRAIN, load_digits
from tests.cli.conftest import Call, Called, is_one_line

PROVIDERS = ["CPUExecutionProvider", "ReferenceExecutionProvider"]


@pytest.fixture
def quick(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The demo with few epochs and two providers, in a temporary folder."""
    monkeypatch.setattr(demo, "available", lambda: PROVIDERS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Called:
        return call("demo", *(arguments or ("--epochs", 2)))

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Called, Path]:
    """The demo of two epochs on two providers, run once: what it printed, and its folder."""
    folder, out, err = tmp_path_factory.mktemp("demo"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "available", lambda: PROVIDERS)
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(sys, "argv", ["onward", "demo", "--epochs", "2"])
        patch.setenv("COLUMNS", "160")
        patch.chdir(folder)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            main()
    return Called(int(exit_.value.code or 0), out.getvalue(), err.getvalue()), folder


@pytest.mark.integration
def test_network_is_trained_exported_and_compared(finished: tuple[Called, Path]) -> None:
    called, parent = finished
    assert called.code == 0, called.err
    before, after = (
        float(re.search(rf"{words} +([\d.]+)%", called.out)[1])
        for words in ("before training", "the exported model")
    )
    assert after > before + 40
    for name in PROVIDERS:
        assert name in called.out
    assert "2 providers agree" in called.out and "onward inspect onward-demo" in called.out
    folder = parent / "onward-demo"
    assert {path.name for path in folder.iterdir()} == {
        "digits.onnx", "digits.npz", "held-out.npz", "runs"
    }  # fmt: skip
    run = folder / "runs" / "digits-1"
    for name in ("model.onnx", "report.html", "checkpoints"):
        assert (run / name).exists() and str(Path("onward-demo/runs/digits-1") / name) in called.out
    assert "val_accuracy" in (run / "metrics.csv").read_text()
    assert "1/2 " in called.out and "2/2 " in called.out and "\x1b" not in called.out


@pytest.mark.integration
def test_printed_accuracy_is_that_of_the_exported_model(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "measure_in_turns", lambda *arguments, **options: True)
    called = quick("--epochs", 2, "--seed", 3, "--out", "here/too")
    images, labels = load_digits()
    session = onward.InferenceSession(tmp_path / "here/too/runs/digits-1/model.onnx")
    [probabilities] = session.run(None, {"image": images[TRAIN:]})
    share = np.mean(probabilities.argmax(1) == labels[TRAIN:])
    assert f"the exported model    {share:>6.1%}" in called.out


@pytest.mark.integration
def test_printed_command_repeats_the_training(
    finished: tuple[Called, Path], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed, folder = finished
    monkeypatch.chdir(folder)
    [command] = re.findall(r"^  (onward train .*)$", printed.out, re.M)
    words = shlex.split(command)[1:]
    resumed = call(*words, "--resume")
    assert resumed.code == 0 and "resumed at step 76 of 76" in resumed.out, resumed
    assert call(*words).code == 0
    first, again = (Path(f"onward-demo/runs/digits-{n}/model.onnx").read_bytes() for n in (1, 2))
    assert first == again


def test_ctrl_c_exports_the_model_trained_so_far(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Any, run: Any, step: Any) -> None:
        if step.number == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(DemoEpochs, "on_step", interrupt)
    called = quick()
    assert called.code == 130
    assert "interrupted at step 5; the model trained so far is exported" in called.out
    assert "providers agree" not in called.out and "Traceback" not in called.out + called.err
    assert (tmp_path / "onward-demo/runs/digits-1/model.onnx").is_file()


@pytest.mark.integration
def test_ctrl_c_while_providers_are_compared_is_one_line(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "measure_in_turns", lambda *arguments, **options: True)
    called = quick("--epochs", 1)
    assert called.code == 130 and "interrupted before the providers were compared" in called.out


@pytest.mark.integration
def test_providers_that_disagree_are_a_warning(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def disagree(measured: Any, *rest: Any, **options: Any) -> bool:
        for i, each in enumerate(measured):
            each.outputs, each.times = [np.full((32, 10), 0.1 * i)], [1.0]
        return False

    monkeypatch.setattr(demo, "measure_in_turns", disagree)
    assert "do not agree: their probabilities differ by 1e-01" in quick("--epochs", 1).out


@pytest.mark.integration
def test_failing_provider_is_shown_with_its_error(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(measured: Any, *rest: Any, **options: Any) -> bool:
        for each in measured:
            each.error = "no kernel for Conv"
        return False

    monkeypatch.setattr(demo, "measure_in_turns", fail)
    called = quick("--epochs", 1)
    assert called.code == 0 and "warning: no kernel for Conv" in called.out


def test_epoch_line_has_a_bar_for_the_loss() -> None:
    summary = EpochSummary(2, 1.2, 2.4, 0.5, 1234)
    assert epoch_line(summary, 15, "#") == (
        "     2/15   1.200 ############                  50.0%     1,234"
    )


def test_missing_providers_are_named_with_their_extras(finished: tuple[Called, Path]) -> None:
    called, _ = finished
    assert "More providers: pip install onward[torch] onward[openvino]" in called.out


def test_folder_that_cannot_be_made_is_an_error_before_training(quick: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    called = quick("--out", "file/inside")
    assert is_one_line(called, "file/inside") and "epoch" not in called.out
