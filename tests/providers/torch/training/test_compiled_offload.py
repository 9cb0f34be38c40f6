"""Activations move to host memory in compiled steps, too."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import Memory, losses, optimizers
from onward.passes.memory_functions import OFFLOAD
from onward.programs.build import build_program
from onward.providers.torch.kernels import host_copies
from onward.providers.torch.kernels.host_copies import (
    AWAIT_DEVICE_COPY,
    AWAIT_HOST_COPY,
    COPY_TO_DEVICE,
    COPY_TO_HOST,
    HostCopy,
)
from onward.providers.torch.training import lowering
from onward.providers.torch.training.compiled_offload import write_host_copies
from tests.providers.torch.training.test_compiled_order import train as train_measured
from tests.providers.torch.training.test_compiled_order import wide_layers

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
LAYERS, SIZE = 8, 64
OPTIONS: dict[str, Any] = {"outputs": []}


def layers(rows: int | str, size: int = SIZE, count: int = LAYERS) -> ir.Model:
    return wide_layers(rows, size, count, scale=0.02)


def feeds(rows: int, size: int = SIZE) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, size)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, size, rows)}


def train(memory: Memory | None, rows: list[int]) -> list[float]:
    session = onward.TrainingSession(
        layers("n"),
        losses.CrossEntropy(),
        optimizers.SGD(lr=1e-3),
        {**OPTIONS, "memory": memory},
        providers=[("InductorExecutionProvider", {"device": "cpu"})],
    )
    return [float(session.step(feeds(each))["loss"]) for each in rows]


def test_values_are_awaited_before_the_second_copy_after_theirs() -> None:
    options = {**OPTIONS, "memory": Memory(offload=True)}
    program = build_program(layers(512), losses.CrossEntropy(), optimizers.SGD(), options)
    model = program.train.clone()
    count = sum(node.op_type == OFFLOAD for node in model.graph)
    copies = write_host_copies(model)
    assert len(copies) == count > 4
    under_way, most, on_host, sent = 0, 0, 0, 0
    for node in model.graph:
        under_way += (node.op_type == COPY_TO_HOST) - (node.op_type == AWAIT_HOST_COPY)
        on_host += node.op_type == AWAIT_HOST_COPY
        sent += (node.op_type == COPY_TO_DEVICE) - (node.op_type == AWAIT_DEVICE_COPY)
        most = max(most, under_way)
    assert (most, under_way, on_host, sent) == (2, 0, count, 0)
    assert not any(node.op_type == OFFLOAD for node in model.graph)
    moved = [node.inputs[0] for node in model.graph if node.op_type == COPY_TO_HOST]
    assert {value.dtype for value in moved if value is not None} == {ir.DataType.FLOAT}
    numbers = {node.attributes.get_int("number") for node in model.graph} - {None}
    assert numbers == {copy.number for copy in copies}


@pytest.mark.slow
def test_compiled_steps_hold_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies begin and end where the plan has them."""
    monkeypatch.setattr(lowering, "_has_other_memory", lambda device: True)
    expected, unlimited, _ = train_measured(None, layers(512, count=3 * LAYERS))
    found, planned, peak = train_measured(Memory(offload=True), layers(512, count=3 * LAYERS))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert peak < 1.1 * planned < 0.6 * unlimited


@pytest.mark.integration
def test_compiled_steps_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [512, 512, 300, 512]  # buffers of two shapes
    expected = train(None, rows)
    monkeypatch.setattr(lowering, "_has_other_memory", lambda device: True)
    gc.collect()
    before = len(host_copies._copies)
    assert train(Memory(offload=True, sizes={"n": 512}), rows) == pytest.approx(expected, rel=1e-6)
    gc.collect()
    torch._dynamo.reset()
    gc.collect()
    assert len(host_copies._copies) == before  # the session's memory went with it


def test_a_copy_that_the_compiler_freed_is_noticed() -> None:
    copy, x = HostCopy(), torch.ones(3)
    copy.store(x)
    copy.await_stored(x)
    with pytest.raises(RuntimeError, match="gradients would be wrong"):
        copy.await_stored(x.clone())


@pytest.mark.gpu
def test_recorded_steps_hold_less_memory_and_compute_the_same() -> None:
    found, held, weights = [], [], []
    for memory in (None, Memory(offload=True)):
        session = onward.TrainingSession(
            layers(1 << 15, 256, 4 * LAYERS),
            losses.CrossEntropy(),
            optimizers.SGD(lr=1e-3),
            {**OPTIONS, "memory": memory},
            providers=[("InductorExecutionProvider", {"device": "cuda"})],
        )
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        found.append([float(session.step(feeds(1 << 15, 256))["loss"]) for _ in range(6)])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved() - before)
        weights.append({name: np.array(value) for name, value in session.parameters.items()})
        session.close()
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert held[1] < 0.6 * held[0]
    assert weights[0].keys() == weights[1].keys() != set()
    for name, expected in weights[0].items():
        # a few millionths of what a step changes
        np.testing.assert_allclose(weights[1][name], expected, rtol=1e-6, atol=1e-8, err_msg=name)
