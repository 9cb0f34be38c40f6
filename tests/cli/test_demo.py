"""onward demo, through the command line: it trains, exports, compares and says what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import onward
from onward.cli import demo, digits_training
from onward.runner.digits import TRAIN, build_network, load_digits
from tests.cli.conftest import Call, Called, is_one_line

PROVIDERS = ["CPUExecutionProvider", "ReferenceExecutionProvider"]


@pytest.fixture
def quick(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The demo with few epochs and two providers, in a folder of its own."""
    monkeypatch.setattr(demo, "available", lambda: PROVIDERS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Called:
        return call("demo", *(arguments or ("--epochs", 2)))

    return run


def test_a_network_is_trained_exported_and_compared(quick: Any, tmp_path: Path) -> None:
    called = quick()
    assert called.code == 0, called.err
    before, after = (
        float(re.search(rf"{words} +([\d.]+)%", called.out)[1])
        for words in ("before training", "after, exported")
    )
    assert after > before + 40
    for name in PROVIDERS:
        assert name in called.out
    assert "2 providers agree" in called.out and "onward inspect onward-demo" in called.out
    folder = tmp_path / "onward-demo"
    assert {path.name for path in folder.iterdir()} == {
        "digits.onnx", "checkpoint.safetensors", "curve.png"
    }  # fmt: skip
    with Image.open(folder / "curve.png") as image:
        image.load()
        assert image.format == "PNG" and image.size == (960, 540)


def test_the_exported_model_is_as_good_as_was_said(quick: Any, tmp_path: Path) -> None:
    called = quick("--epochs", 2, "--seed", 3, "--out", "here/too")
    images, labels = load_digits()
    session = onward.InferenceSession(tmp_path / "here/too/digits.onnx")
    [probabilities] = session.run(None, {"image": images[TRAIN:]})
    share = np.mean(probabilities.argmax(1) == labels[TRAIN:])
    assert f"after, exported   {share:>6.1%}" in called.out


def test_training_goes_on_from_the_checkpoint(quick: Any, tmp_path: Path) -> None:
    quick("--epochs", 1)
    session = onward.TrainingSession(
        build_network(),
        digits_training.CrossEntropy(output="scores"),
        digits_training.AdamW(lr=digits_training.RATE),
        {"schedule": digits_training.OneCycle(steps=74)},
    )
    session.load(tmp_path / "onward-demo" / "checkpoint.safetensors")
    assert session.steps == 37


def test_ctrl_c_exports_what_was_learned(
    quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tired(*arguments: Any) -> Any:
        yield from list(batches(*arguments))[:5]
        raise KeyboardInterrupt

    batches = digits_training.batches
    monkeypatch.setattr(digits_training, "batches", tired)
    called = quick()
    assert called.code == 130
    assert "ended at step 5; what was learned until then is exported" in called.out
    assert "providers agree" not in called.out and "Traceback" not in called.out + called.err
    assert (tmp_path / "onward-demo" / "digits.onnx").is_file()


def test_ctrl_c_while_providers_are_compared_is_one_line(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "race", lambda *arguments: True)
    called = quick("--epochs", 1)
    assert called.code == 130 and "ended before the providers were compared" in called.out


def test_providers_that_do_not_agree_are_told(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cheat(runners: Any, *rest: Any) -> bool:
        for i, runner in enumerate(runners):
            runner.outputs, runner.times = [np.full((32, 10), 0.1 * i)], [1.0]
        return False

    monkeypatch.setattr(demo, "race", cheat)
    assert "do not agree: their probabilities are 1e-01 apart" in quick("--epochs", 1).out


def test_a_provider_that_fails_is_shown_with_its_reason(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runners: Any, *rest: Any) -> bool:
        for runner in runners:
            runner.error = "it is not in the mood"
        return False

    monkeypatch.setattr(demo, "race", fail)
    called = quick("--epochs", 1)
    assert called.code == 0 and "warning: it is not in the mood" in called.out


def test_a_folder_that_cannot_be_made_is_told_before_training(quick: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    called = quick("--out", "file/inside")
    assert is_one_line(called, "file/inside") and "epoch" not in called.out
