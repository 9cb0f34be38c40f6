"""The torch providers: supported nodes, eager and compiled runs, and imports."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

import onward
from onward.errors import ProviderError
from onward.graph.builder import OpBuilder
from onward.providers.torch.provider import TorchProvider
from tests.models import mlp

INDUCTOR = "InductorExecutionProvider"
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


def block() -> ir.Model:
    """One attention layer with its norm, for any batch and length."""
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", "length", 8))

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, rng.normal(0, 0.3, shape).astype(np.float32))

    normed = op.LayerNormalization(x, weight("scale", 8), weight("bias", 8))
    shape = op.Concat(op.Shape(x, start=0, end=2), [2, 4], axis=0)
    q, k, v = (
        op.Transpose(op.Reshape(op.MatMul(normed, weight(n, 8, 8)), shape), perm=[0, 2, 1, 3])
        for n in "qkv"
    )
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), 0.5)
    mixed = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
    return op.model(y=op.Add(x, op.Reshape(mixed, op.Shape(x))))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_inductor_matches_onnxruntime_for_every_shape() -> None:
    options = onward.SessionOptions(disable_fallback=True)
    session = onward.InferenceSession(block(), options, [(INDUCTOR, {"dynamic": True})])
    expected = onward.InferenceSession(block(), None, ["CPUExecutionProvider"])
    for batch, length in ((2, 5), (3, 7)):
        feeds = {"x": np.random.default_rng(2).normal(size=(batch, length, 8)).astype(np.float32)}
        (got,), (wanted,) = session.run(None, feeds), expected.run(None, feeds)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def broken_compiler(module: Any, **_: Any) -> Any:
    """A torch.compile whose functions cannot be compiled."""

    def call(*_: Any) -> Any:
        raise TorchDynamoException("no such thing")

    return call


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fallback", [True, False])
def test_graph_that_inductor_cannot_compile_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fallback: bool
) -> None:
    monkeypatch.setattr(torch, "compile", broken_compiler)
    options = onward.SessionOptions(disable_fallback=not fallback)
    session = onward.InferenceSession(mlp(), options, [INDUCTOR])
    if not fallback:
        with pytest.raises(onward.OnwardError, match="torch failed: no such thing"):
            session.run(None, {"x": X})
        return
    with caplog.at_level(logging.WARNING):
        (y,) = session.run(None, {"x": X})
        session.run(None, {"x": X})
    assert y.shape == (3, 2)
    assert caplog.text.count("Inductor cannot compile this graph") == 1


@pytest.mark.filterwarnings("ignore")
def test_a_training_step_that_inductor_cannot_compile_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", broken_compiler)
    session = onward.TrainingSession(
        mlp(), onward.losses.CrossEntropy(), onward.optimizers.SGD(), providers=[INDUCTOR]
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            session.step({"x": X, "labels": np.array([0, 1, 0])})
    assert caplog.text.count("cannot compile this graph, torch runs it eagerly: no such thing") == 1


def test_without_a_compiler_inductor_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert INDUCTOR not in onward.get_available_providers()
    with pytest.warns(UserWarning, match=r"it needs a C\+\+ compiler"):
        onward.InferenceSession(mlp(), providers=[INDUCTOR])


def test_threads_are_set() -> None:
    import torch

    before = torch.get_num_threads()
    options = onward.SessionOptions(intra_op_num_threads=3)
    onward.InferenceSession(mlp(), options, ["TorchExecutionProvider"])
    try:
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize("run", ["session.run(None, {'x': np.ones(4, np.float32)});", ""])
def test_the_eager_provider_does_not_load_the_compiler(run: str, tmp_path: Path) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (4,))
    onward.save(op.model(y=op.Dropout(x, np.float32(0.5), True, seed=3)), tmp_path / "m.onnx")
    code = (
        "import sys, numpy as np, onward, onward.providers.torch.provider;"
        f"session = onward.InferenceSession({str(tmp_path / 'm.onnx')!r}, None, ['torch']);{run}"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'onnxscript') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_strings_are_not_supported() -> None:
    op = OpBuilder()
    model = op.model(
        y=op.StringConcat(
            op.input("a", ir.DataType.STRING, (1,)), op.input("b", ir.DataType.STRING, (1,))
        )
    )
    options = onward.SessionOptions(disable_fallback=True)
    with pytest.raises(onward.OnwardError, match=r"no provider runs ai\.onnx::StringConcat"):
        onward.InferenceSession(model, options, ["TorchExecutionProvider"])
    (y,) = onward.InferenceSession(model).run(None, {"a": np.array(["x"]), "b": np.array(["y"])})
    assert y.tolist() == ["xy"]


def test_a_feed_that_torch_cannot_hold_is_a_failed_run() -> None:
    executable = TorchProvider("TorchExecutionProvider", torch.device("cpu")).compile(mlp())
    with pytest.raises(ProviderError, match="torch failed: can't convert"):
        executable.run([np.array([b"text"])])


def test_an_error_that_the_gpu_reports_late_says_that_the_gpu_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'")

    monkeypatch.setattr("onward.providers.torch.provider.to_numpy", failing)
    session = onward.InferenceSession(mlp(), None, ["TorchExecutionProvider"])
    with pytest.raises(ProviderError, match=r"assert triggered\nusually an index out of range"):
        session.run(None, {"x": X})


@pytest.mark.gpu
def test_an_index_out_of_range_on_the_gpu_is_a_provider_error() -> None:
    op = OpBuilder()
    x, i = op.input("x", "float32", (4,)), op.input("i", "int64", (1,))
    provider = ("TorchExecutionProvider", {"device": "cuda"})
    options = onward.SessionOptions(isolated=True)  # its process loses the GPU, not this one
    session = onward.InferenceSession(op.model(y=op.Gather(x, i)), options, [provider])
    feeds = {"x": np.ones(4, np.float32), "i": np.array([9])}
    with session, pytest.raises(ProviderError, match="start it again"):
        session.run(None, feeds)
