"""Compiled steps compute values again where the backward pass needs them, and not earlier."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import Memory, losses, optimizers
from onward.programs.build import build_program
from onward.providers.options import SessionOptions
from onward.providers.torch.inductor import make_inductor
from onward.providers.torch.kernels.memory import CHANGE_AFTER, COPY_AFTER, change_after
from onward.providers.torch.training.lowering import lower_program

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
LAYERS, ROWS, SIZE = 8, 512, 64


def wide_layers(
    rows: int | str = ROWS, size: int = SIZE, count: int = LAYERS, scale: float = 0.1
) -> ir.Model:
    """Residual layers, each four times as wide inside."""
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    x: Any = op.input("x", "float32", (rows, size))
    for i in range(count):
        into, out = (
            op.initializer(f"{name}{i}", rng.normal(0, scale, shape).astype(np.float32))
            for name, shape in (("into", (size, 4 * size)), ("out", (4 * size, size)))
        )
        x = op.Add(x, op.MatMul(op.Gelu(op.MatMul(x, into)), out))
    return op.model(scores=x)


def feeds(rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, SIZE)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, SIZE, rows)}


def train(memory: Memory | None, model: ir.Model | None = None) -> tuple[list[float], int, int]:
    """The losses of three compiled steps; the planned and the allocated bytes of one."""
    program = onward.compile_training(
        model or wide_layers(), losses.CrossEntropy(), optimizers.SGD(lr=1e-3), {"memory": memory}
    )
    session = onward.TrainingSession(
        program, providers=[("InductorExecutionProvider", {"device": "cpu"})]
    )
    seen = [float(session.step(feeds())["loss"]) for _ in range(3)]
    with torch.profiler.profile(profile_memory=True) as profile:
        session.step(feeds())
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        held += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, held)
    report = onward.memory_report(program)
    return seen, report.activations.peak + report.gradients, peak


@pytest.mark.slow
def test_a_budget_lowers_the_memory_of_a_compiled_step() -> None:
    expected, planned, unlimited = train(None)
    assert planned == pytest.approx(unlimited, rel=0.1)
    for memory in (Memory(budget="50%"), Memory(level=2)):
        found, planned, peak = train(memory)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert peak < 1.15 * planned  # Inductor computes at once what reads the same values
        assert peak < 0.6 * unlimited


@pytest.mark.slow
def test_values_are_rounded_to_8_bits_where_the_graph_does() -> None:
    """Else a compiler rounds them where they are read, and keeps what they are rounded from."""
    _, planned, peak = train(Memory(stash="int8"), wide_layers(count=6))
    assert peak < planned


def test_barriers_copy_feeds_and_nothing_else() -> None:
    memory = Memory(plan=["*Gelu*", "*MatMul*"])
    program = build_program(
        wide_layers(), losses.CrossEntropy(), optimizers.SGD(), {"memory": memory}
    )
    graphs = lower_program(program, make_inductor({"device": "cpu"}, SessionOptions()))
    assert graphs is not None and graphs.in_order
    barriers = [node for node in graphs.train.model.graph if node.op_type.endswith("After")]
    copied = [node.inputs[0].name for node in barriers if node.op_type == COPY_AFTER]  # type: ignore[union-attr]
    assert set(copied) <= {"x"} and any(node.op_type == CHANGE_AFTER for node in barriers)


def test_barriers_wait_for_gradients_that_were_computed_before_them() -> None:
    """Else a compiler may compute them at the end, and keep what they are computed from."""
    program = build_program(
        wide_layers(), losses.CrossEntropy(), optimizers.SGD(), {"memory": Memory(level=2)}
    )
    graphs = lower_program(program, make_inductor({"device": "cpu"}, SessionOptions()))
    assert graphs is not None
    gradients = {parameter.gradient for parameter in program.layout.parameters}
    seen: set[str] = set()  # gradients that exist before a node
    awaited: set[str] = set()
    for node in graphs.train.model.graph:
        if node.op_type == CHANGE_AFTER:
            awaited |= {str(value.name) for value in node.inputs[2:] if value is not None}
            assert seen <= awaited
        seen |= {str(value.name) for value in node.outputs} & gradients
    assert len(awaited & gradients) > LAYERS


def test_values_that_overlap_are_copied() -> None:
    x, token = torch.ones(1, 3).expand(2, 3), torch.ones(1)
    y = change_after(x, token)
    assert y.is_contiguous() and torch.equal(x, y)
    assert change_after(y, token) is y


def recorded_memory() -> Counter[Any]:
    """The bytes that recorded CUDA graphs hold, by their pool of memory."""
    found: Counter[Any] = Counter()
    for segment in torch.cuda.memory_snapshot():
        found[tuple(segment["segment_pool_id"])] += segment["total_size"]
    del found[0, 0]  # what is not recorded
    return found


@pytest.mark.gpu
def test_a_budget_lowers_the_memory_of_a_recorded_step() -> None:
    """Recorded CUDA graphs hold their memory: each step has a pool of its own.

    Pools grow by 20 MB at a time: the rows are many, so that activations are far more.
    """
    held, seen, rows = [], [], 1 << 15
    for memory in (None, Memory(budget="50%")):
        session = onward.TrainingSession(
            wide_layers(rows),
            losses.CrossEntropy(),
            optimizers.SGD(lr=1e-3),
            {"memory": memory},
            providers=[("InductorExecutionProvider", {"device": "cuda"})],
        )
        others = set(recorded_memory())
        seen.append([float(session.step(feeds(rows))["loss"]) for _ in range(3)])
        torch.cuda.empty_cache()
        held.append(sum(size for pool, size in recorded_memory().items() if pool not in others))
        session.close()
    np.testing.assert_allclose(*seen, rtol=1e-5)
    assert held[1] < held[0]
