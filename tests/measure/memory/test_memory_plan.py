"""Memory of a model: planned, measured, limited, shared, and returned to the system."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import FeedError, InvalidModel, MemoryLimitExceeded, OptionError
from onward.graph.builder import OpBuilder
from onward.measure.memory import resident_memory
from onward.measure.memory.memory_plan import MeasuredMemory, MemoryPlan, NodeMemory
from onward.providers.ort.ort_format import write_ort_format
from tests.models import mlp, sandwich, serialized

CPU, TORCH = "CPUExecutionProvider", "TorchExecutionProvider"
MB = 1 << 20
linux = pytest.mark.skipif(not resident_memory.MEASURABLE, reason="reads Linux's /proc")


def wide(rows: Any = 256) -> Any:
    """x (rows, 1024) -> five values of its size, two of which live at once."""
    op = OpBuilder()
    y = op.input("x", "float32", (rows, 1024))
    for operator in ("Exp", "Neg", "Sin", "Cos", "Abs"):
        y = getattr(op, operator)(y)
    return op.model(y=op.ReduceSum(y, keepdims=0))


def weighty(seed: int = 0) -> Any:
    """A Gather from 4 MB of weights, which no kernel packs."""
    op = OpBuilder()
    table = np.random.default_rng(seed).normal(size=(1024, 1024)).astype(np.float32)
    w = op.initializer("w", table)
    return op.model(y=op.Gather(w, op.input("i", "int64", ("n",))))


# -- plan and measurement -----------------------------------------------------------------------


@pytest.mark.integration
@linux
def test_plan_for_sizes_agrees_with_measurement(tmp_path: Path) -> None:
    onward.save(wide("rows"), tmp_path / "m.onnx")
    feeds = {"x": np.zeros((4096, 1024), np.float32)}
    plan = onward.plan_memory(tmp_path / "m.onnx", {"rows": 4096}, [CPU])
    measured = onward.measure_memory(tmp_path / "m.onnx", feeds, [CPU])
    assert plan.activations == 32 * MB and plan.outputs == 4
    assert plan.peak == pytest.approx(measured.peak, rel=0.1)
    assert [moment.op_type for moment in plan.timeline[:2]] == ["Exp", "Neg"]


@pytest.mark.integration
@linux
def test_session_plans_for_sizes_and_for_feeds() -> None:
    session = onward.InferenceSession(wide("rows"), providers=[CPU])
    small = session.memory_plan({"rows": 8})
    large = session.memory_plan({"x": np.zeros((1024, 1024), np.float32)})
    assert small.shapes == {"x": (8, 1024)} and large.shapes == {"x": (1024, 1024)}
    assert small.held == pytest.approx(large.held, abs=MB / 8)  # heaps differ by some pages
    assert large.running - small.running > 8 * MB - (1 << 20)


@linux
@pytest.mark.slow
def test_plan_of_a_model_on_two_providers() -> None:
    plan = onward.plan_memory(sandwich(), {"batch": 1000}, [CPU, "ReferenceExecutionProvider"])
    assert plan.activations is not None and plan.activations >= 16_000
    assert plan.running >= 16_000 and not plan.run_error


@linux
def test_plan_is_estimated_where_the_machine_lacks_the_memory() -> None:
    plan = onward.plan_memory(wide("rows"), {"rows": 1 << 32}, [CPU])  # 16 TB a value
    assert plan.activations == plan.running == 32 << 40
    assert "MemoryError" in plan.run_error and "estimated: MemoryError" in str(plan)


@linux
def test_plan_with_feeds_that_do_not_fit_raises_their_error() -> None:
    with pytest.raises(FeedError, match="'x'"):
        onward.plan_memory(wide("rows"), {"x": np.zeros((4, 3), np.float32)}, [CPU])


@linux
def test_plan_of_an_ort_format_model_is_measured_only(tmp_path: Path) -> None:
    onward.save(wide("rows"), tmp_path / "m.onnx")
    write_ort_format(tmp_path / "m.onnx", tmp_path / "m.ort")
    plan = onward.plan_memory(tmp_path / "m.ort", {"rows": 1024}, [CPU])
    assert plan.running > 8 * MB and plan.weights == 0
    assert plan.activations is None and plan.outputs is None and plan.timeline == ()
    assert "unknown" in str(plan)


@linux
def test_plan_of_an_invalid_model_raises_invalid_model() -> None:
    with pytest.raises(InvalidModel):
        onward.plan_memory(b"no model")


def test_plan_prints_as_a_table() -> None:
    plan = MemoryPlan(
        providers=(CPU,), shapes={"x": (8, 4)}, weights=2_000_000, engine=500_000,
        opening_peak=3_000_000, activations=900_000, outputs=100_000, running=1_000_000,
        timeline=(NodeMemory("n0", "Exp", 900_000),), unknown=("a", "b", "c", "d"),
    )  # fmt: skip
    assert plan.held == 2_500_000 and plan.peak == 3_500_000
    text = str(plan)
    assert "x (8, 4)" in text and "3.50 MB  while running" in text
    assert "fullest: 0.90 MB at Exp n0" in text and "4 values of unknown size: a, b, c, ..." in text


def test_measured_peak_is_the_greater_of_opening_and_running() -> None:
    assert MeasuredMemory(5, 1, (3, 4)).peak == 5
    assert MeasuredMemory(5, 1, (3, 9)).peak == 9


def test_measure_memory_needs_at_least_one_run() -> None:
    with pytest.raises(OptionError, match="runs must be a number above 0, not 0"):
        onward.measure_memory(mlp(), {}, runs=0)


# -- limits -------------------------------------------------------------------------------------


def test_opening_refuses_a_model_of_fixed_sizes_beyond_the_limit() -> None:
    options = onward.SessionOptions(memory_limit=MB // 2)
    for model in (wide(256), serialized(wide(256))):
        with pytest.raises(
            MemoryLimitExceeded, match=r"needs at least 1,\d+,\d+ bytes \(0 of weig"
        ):
            onward.InferenceSession(model, options, [CPU])


def test_opening_counts_sizes_fixed_by_options() -> None:
    options = onward.SessionOptions(memory_limit=MB // 2)
    options.add_free_dimension_override_by_name("rows", 256)
    with pytest.raises(MemoryLimitExceeded, match="the model needs at least"):
        onward.InferenceSession(wide("rows"), options, [CPU])


@pytest.mark.parametrize("provider", [TORCH, "ReferenceExecutionProvider"])
def test_run_beyond_the_limit_is_refused_before_the_engine_allocates(provider: str) -> None:
    options = onward.SessionOptions(memory_limit=4 * MB)
    session = onward.InferenceSession(wide("rows"), options, [provider])
    session.run(None, {"x": np.zeros((8, 1024), np.float32)})
    with pytest.raises(
        MemoryLimitExceeded, match=r"(?s)the run needs at least .* feed smaller batches"
    ):
        session.run(None, {"x": np.zeros((4096, 1024), np.float32)})
    session.run(None, {"x": np.zeros((8, 1024), np.float32)})


def test_limit_counts_weights_and_runs_together() -> None:
    options = onward.SessionOptions(memory_limit=6 * MB)
    session = onward.InferenceSession(serialized(weighty()), options, [CPU])
    session.run(None, {"i": np.zeros(64, np.int64)})
    with pytest.raises(MemoryLimitExceeded, match="memory limit of 6,291,456"):
        session.run(None, {"i": np.zeros(1024, np.int64)})  # 4 MB in addition to 4 MB of weights


# -- outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, sandwich])
def test_run_into_writes_results_into_given_arrays(make: Any) -> None:
    session = onward.InferenceSession(make())
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    outputs = session.allocate_outputs(feeds)
    place = outputs["y"].ctypes.data
    session.run_into(outputs, feeds)
    assert outputs["y"].ctypes.data == place
    np.testing.assert_array_equal(outputs["y"], session.run(None, feeds)[0])
    assert session.allocate_outputs({"batch": 7})["y"].shape[0] == 7


def test_allocate_outputs_infers_shapes() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n", 4))
    session = onward.InferenceSession(op.model(y=op.Concat(x, x, axis=0)), providers=[CPU])
    assert session.allocate_outputs({"n": 3})["y"].shape == (6, 4)


def test_allocate_outputs_refuses_data_dependent_shapes() -> None:
    op = OpBuilder()
    model = op.model(y=op.NonZero(op.input("x", "float32", (4,))))
    session = onward.InferenceSession(model, providers=[CPU])
    with pytest.raises(OptionError, match="output 'y' is known only after a run\nrun once"):
        session.allocate_outputs()


@pytest.mark.parametrize(
    ("outputs", "law"),
    [
        ({"z": np.empty((1, 2), np.float32)}, "no output 'z'; the model gives 'y'"),
        ({"y": np.empty((1, 2), np.float64)}, "is tensor.float., but was given tensor.double."),
        ({"y": np.empty((1, 4), np.float32)[:, ::2]}, "without gaps"),
        ({"y": [[0.0, 0.0]]}, "takes a numpy array"),
        ({"y": np.broadcast_to(np.float32(0), (1, 1))}, "can be written to"),
        ({"y": np.empty((5, 2), np.float32)}, "do not have the shapes.*\nallocate_outputs"),
    ],
)
def test_run_into_refuses_arrays_that_cannot_take_the_result(outputs: Any, law: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[CPU])
    with pytest.raises(FeedError, match=law):
        session.run_into(outputs, {"x": np.zeros((1, 4), np.float32)})


# -- shrinking ----------------------------------------------------------------------------------


@linux
def test_shrink_arena_returns_memory() -> None:
    options = onward.SessionOptions(shared=onward.SharedMemory())
    session = onward.InferenceSession(wide("rows"), options, [CPU])
    feeds = {"x": np.zeros((8192, 1024), np.float32)}  # 32 MB a value
    session.run(None, feeds)
    before = resident_memory.resident()
    shrink = onward.RunOptions()
    shrink.shrink_arena = True
    session.run(None, feeds, shrink)  # the region that the result lies in stays
    assert before - resident_memory.resident() > 30 * MB


# -- sharing ------------------------------------------------------------------------------------


@pytest.mark.integration
def test_shared_memory_holds_equal_weights_once_while_used() -> None:
    shared = onward.SharedMemory()
    options = onward.SessionOptions(shared=shared)
    feeds = {"i": np.array([3, 5])}
    sessions = [onward.InferenceSession(weighty(), options, [CPU]) for _ in range(3)]
    assert shared.weight_bytes == 4 * MB
    expected = onward.InferenceSession(weighty(), providers=[CPU]).run(None, feeds)[0]
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    other = onward.InferenceSession(weighty(seed=1), options, [CPU])
    assert shared.weight_bytes == 8 * MB
    del sessions, session
    gc.collect()
    assert shared.weight_bytes == 4 * MB
    assert other.run(None, feeds)[0].shape == (2, 1024)


@pytest.mark.integration
@linux
def test_sessions_with_shared_memory_take_less(tmp_path: Path) -> None:
    onward.save(weighty(), tmp_path / "m.onnx")
    options = onward.SessionOptions(shared=onward.SharedMemory())
    sessions = [onward.InferenceSession(tmp_path / "m.onnx", options, [CPU])]
    gc.collect()
    resident_memory.release_free_memory()
    before = resident_memory.resident()
    sessions += [onward.InferenceSession(tmp_path / "m.onnx", options, [CPU]) for _ in range(12)]
    gc.collect()
    resident_memory.release_free_memory()
    assert resident_memory.resident() - before < 12 * MB  # separately, they would take 48


def test_many_threads_open_sessions_with_shared_memory() -> None:
    shared = onward.SharedMemory()
    found: list[Any] = []

    def work() -> None:
        options = onward.SessionOptions(shared=shared)
        session = onward.InferenceSession(weighty(), options, [CPU])
        found.append((session, session.run(None, {"i": np.array([7])})[0]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and shared.weight_bytes == 4 * MB
    assert all(np.array_equal(result, found[0][1]) for _, result in found)


def test_shared_memory_limit_holds_for_all_sessions_together() -> None:
    options = onward.SessionOptions(shared=onward.SharedMemory(memory_limit=MB))
    options.log_severity_level = 4
    session = onward.InferenceSession(wide("rows"), options, [CPU])
    session.run(None, {"x": np.zeros((8, 1024), np.float32)})
    with pytest.raises(MemoryLimitExceeded, match="memory limit of 1,048,576 bytes"):
        session.run(None, {"x": np.zeros((4096, 1024), np.float32)})


def test_shared_memory_refuses_a_second_limit_and_negative_ones() -> None:
    shared = onward.SharedMemory()
    with pytest.raises(OptionError, match="memory_limit and shared"):
        options = onward.SessionOptions(shared=shared, memory_limit=MB)
        onward.InferenceSession(mlp(), options, [CPU])
    with pytest.raises(OptionError, match="memory_limit must be a number of bytes above 0, not -1"):
        onward.SharedMemory(memory_limit=-1)


def test_shared_memory_survives_another_arena_registered_in_between() -> None:
    shared = onward.SharedMemory()
    feeds = {"i": np.array([1])}
    first = onward.InferenceSession(weighty(), onward.SessionOptions(shared=shared), [CPU])
    limited = onward.InferenceSession(mlp(), onward.SessionOptions(memory_limit=8 * MB), [CPU])
    second = onward.InferenceSession(weighty(), onward.SessionOptions(shared=shared), [CPU])
    assert shared.weight_bytes == 4 * MB
    np.testing.assert_array_equal(first.run(None, feeds)[0], second.run(None, feeds)[0])
    assert limited.run(None, {"x": np.zeros((1, 4), np.float32)})[0].shape == (1, 2)
