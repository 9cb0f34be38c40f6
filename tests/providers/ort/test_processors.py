"""Programs carry graphs for kinds of processors; each machine takes the fastest on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import UnsupportedModel
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.providers.ort import processors
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import ANY, AVX512, find_processor
from onward.sessions.training import open_program
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import (
    TrainingProgram,
    compile_training,
    load_program,
)
from tests.passes.one_graph import built
from tests.sessions.training.small import batches, mlp


def images(batch: Any = 2) -> Any:
    """A small convolutional classifier, its training program and a batch."""
    op = onward.OpBuilder()
    generator = np.random.default_rng(0)
    x = op.input("x", "float32", (batch, 3, 16, 16))
    y = x
    for i, (before, after, stride) in enumerate([(3, 16, 1), (16, 32, 2)]):
        kernel = generator.normal(0, 0.1, (after, before, 3, 3)).astype(np.float32)
        y = op.Conv(y, op.initializer(f"w{i}", kernel), pads=[1] * 4, strides=[stride] * 2)
        y = op.Relu(y)
    head = op.initializer("head", generator.normal(0, 0.1, (32, 5)).astype(np.float32))
    model = op.model(y=op.MatMul(op.Flatten(op.GlobalAveragePool(y)), head))
    feeds = {
        "x": generator.normal(size=(2, 3, 16, 16)).astype(np.float32),
        "labels": np.array([1, 4]),
    }
    return compile_training(model, CrossEntropy(), AdamW(lr=0.01)), feeds


def test_processors_of_other_architectures_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.platform, "machine", lambda: "aarch64")
    assert find_processor(processor_probe()) == ANY


def test_kernels_with_other_results_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.platform, "machine", lambda: "x86_64")
    wrong = built(lambda op, x: op.Add(op.ReduceMax(x, keepdims=0), 100.0), (2, 2))
    assert find_processor(ir.to_proto(wrong).SerializeToString()) == ANY


def test_an_engine_without_the_kernels_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.platform, "machine", lambda: "AMD64")
    assert find_processor(b"not a model") == ANY


@pytest.mark.parametrize("batch", [2, "n"])
def test_a_saved_program_trains_alike_on_any_processor(
    batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, feeds = images(batch)
    folder = program.save(tmp_path / "program")
    assert (folder / AVX512 / "train.onnx").exists() and (folder / AVX512 / "step.onnx").exists()
    fastest = TrainingSession(load_program(folder))
    monkeypatch.setattr(processors.platform, "machine", lambda: "aarch64")
    portable = TrainingSession(load_program(folder))
    for _ in range(5):
        np.testing.assert_allclose(
            fastest.step(feeds)["loss"], portable.step(feeds)["loss"], rtol=1e-4
        )
    for name, found in fastest.parameters.items():
        np.testing.assert_allclose(found, portable.parameters[name], atol=1e-4)


def test_a_program_saved_from_a_saved_one_keeps_the_graphs(tmp_path: Path) -> None:
    folder = images()[0].save(tmp_path / "one")
    again = load_program(folder).save(tmp_path / "two")
    for name in ("train.onnx", f"{AVX512}/train.onnx", f"{AVX512}/probe.onnx"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_program_of_an_older_version_is_read(tmp_path: Path) -> None:
    folder = compile_training(mlp(), CrossEntropy(), AdamW()).save(tmp_path / "one")
    assert not (folder / AVX512).exists() or (folder / AVX512 / "train.onnx").exists()
    manifest = folder / "program.json"
    manifest.write_text(manifest.read_text().replace(f'"{AVX512}"', '"a-newer-one"'))
    session = TrainingSession(load_program(folder))
    assert np.isfinite(session.step(batches(1)[0])["loss"])


def test_providers_other_than_the_cpu_get_the_portable_graphs() -> None:
    program, feeds = images()
    session = TrainingSession(program, providers=["ReferenceExecutionProvider"])
    other = TrainingSession(program)
    assert isinstance(program, TrainingProgram)
    np.testing.assert_allclose(session.step(feeds)["loss"], other.step(feeds)["loss"], rtol=1e-4)


def test_a_model_that_onnxruntime_does_not_open_gets_the_portable_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another engine has no kernels for the layouts of one kind of processor."""
    program, feeds = images()

    def refuse(*_: Any) -> Any:
        raise UnsupportedModel("an operator is missing")

    wanted = TrainingSession(program).step(feeds)["loss"]
    monkeypatch.setattr(open_program, "BoundSession", refuse)
    np.testing.assert_allclose(TrainingSession(program).step(feeds)["loss"], wanted, rtol=1e-4)
