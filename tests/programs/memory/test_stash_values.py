"""Values that wait for the backward pass are kept in 8 bits, or in host memory."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.passes.memory_functions import DEQUANTIZE, QUANTIZE, register_memory_function
from onward.programs.memory.memory_options import Memory
from onward.programs.memory.memory_report import memory_report
from tests.programs.memory.models import transformer, transformer_feeds
from tests.programs.memory.test_optimize_memory import ENGINES, build, train


def roundtrip() -> ir.Model:
    """x -> 8 bits -> x"""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (None, None))
    q, scale = op.node(QUANTIZE, [x], {}, outputs=2, domain="onward")  # type: ignore[misc]
    y = op.node(DEQUANTIZE, [q, scale, op.Shape(x)], {}, domain="onward")
    assert isinstance(y, ir.Value)
    y.dtype, y.shape = ir.DataType.FLOAT, ir.Shape([None, None])
    model = op.model(y=y)
    for name in (QUANTIZE, DEQUANTIZE):
        register_memory_function(model, name)
    return model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(3, 5), (4, 256), (7, 311), (1, 1)])
def test_8_bits_are_within_half_a_step(engine: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (y,) = onward.InferenceSession(roundtrip(), providers=[engine]).run(None, {"x": x})
    assert np.abs(y - x).max() <= np.abs(x).max() / 127 * 0.501
    (zeros,) = onward.InferenceSession(roundtrip(), providers=[engine]).run(None, {"x": 0 * x})
    assert not zeros.any()


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_training_with_8_bit_activations_follows_the_exact_one(engine: str) -> None:
    feeds = transformer_feeds(16)
    expected, _ = train(transformer(16), feeds, None, engine)
    found, _ = train(transformer(16), feeds, Memory(stash="int8"), engine)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)  # the forward pass is exact
    np.testing.assert_allclose(found, expected, rtol=5e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_offloaded_activations_are_exact(engine: str) -> None:
    feeds = transformer_feeds(16)
    expected, _ = train(transformer(16), feeds, None, engine)
    found, _ = train(transformer(16), feeds, Memory(offload=True), engine)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.integration
def test_report_counts_stashed_and_offloaded_values() -> None:
    plain = memory_report(build(transformer(64), None))
    for memory in (Memory(stash="int8"), Memory(offload=True)):
        report = memory_report(build(transformer(64), memory))
        assert report.unlimited.peak > 1.5 * report.activations.peak
        assert report.unlimited.waiting > 2 * report.activations.waiting
        assert report.unlimited == plain.activations


@pytest.mark.gpu
@pytest.mark.parametrize("memory", [Memory(offload=True), Memory(level=2), Memory(stash="int8")])
def test_cuda_takes_less_memory(memory: Memory) -> None:
    torch = pytest.importorskip("torch")
    feeds = transformer_feeds(256, 64)
    losses_of, peaks = [], []
    for each in (None, memory):
        session = onward.TrainingSession(
            transformer(256, 64, layers=4),
            onward.losses.CrossEntropy(),
            onward.optimizers.SGD(lr=0.1),
            {"memory": each, "outputs": []},
            providers=[("TorchExecutionProvider", {"device": "cuda"})],
        )
        losses_of.append([float(session.step(feeds)["loss"]) for _ in range(3)])
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        session.step(feeds)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        session.close()
    np.testing.assert_allclose(*losses_of, rtol=1e-2 if memory.stash else 1e-5)
    assert peaks[1] < 0.8 * peaks[0]
