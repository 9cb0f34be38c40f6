"""TorchTraining: a program in torch, its state on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onward
from onward import losses, optimizers
from onward.errors import FeedError, ProviderError
from onward.graph.graph_ops import extend
from onward.optimizers import schedules
from onward.programs.build import build_program
from onward.programs.program import Program
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.provider import Draw
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.executable import TorchTraining, open_program
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
CPU = torch.device("cpu")
LOOKS = ("item", "numpy", "cpu", "tolist", "__bool__", "__float__", "__int__", "__index__")


def program(optimizer: Any = None, model: Any = None, **options: Any) -> Program:
    chosen = optimizer or optimizers.AdamW(lr=0.01)
    return build_program(model or mlp(), losses.CrossEntropy(), chosen, options)


def opened(device: torch.device = CPU, captured: bool = False, **options: Any) -> TorchTraining:
    provider = TorchProvider("TorchExecutionProvider", device, captures_steps=captured)
    found = open_program(program(**options), provider)
    assert found is not None
    found.set_rates(0, [[0.01] * found.lookahead] * len(found.store.updates))
    return found


@contextmanager
def unseen() -> Iterator[None]:
    """Whoever looks at a tensor here fails."""
    patches = [
        mock.patch.object(torch.Tensor, name, side_effect=AssertionError(f"{name} was called"))
        for name in LOOKS
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


@pytest.mark.parametrize(
    "options",
    [{}, {"clip_norm": 0.1}, {"accumulate": 2}, {"schedule": schedules.Cosine(steps=9)}],
    ids=["plain", "clipped", "accumulated", "scheduled"],
)
def test_step_reads_no_tensor_on_the_host(options: dict[str, Any]) -> None:
    one = TrainingSession(
        mlp(),
        losses.CrossEntropy(),
        optimizers.AdamW(),
        options,
        providers=[("TorchExecutionProvider", {"device": "cpu"})],
    )
    feeds = batches(6)
    one.step(feeds[0])
    with unseen():
        results = [one.step(each) for each in feeds[1:]]
    assert one.steps == 6 // options.get("accumulate", 1)
    assert all(np.isfinite(each["loss"]) for each in results)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:TensorFloat32")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["TorchExecutionProvider", "InductorExecutionProvider"])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_step_does_not_wait_for_the_gpu(as_tensors: bool, name: str) -> None:
    one = TrainingSession(
        mlp(dropout=0.1),
        losses.CrossEntropy(),
        optimizers.AdamW(),
        {"clip_norm": 1.0, "schedule": schedules.Cosine(steps=40)},
        providers=[(name, {"device": "cuda"})],
    )
    feeds: list[dict[str, Any]] = list(batches(8))
    if as_tensors:
        feeds = [{n: torch.tensor(a, device="cuda") for n, a in each.items()} for each in feeds]
    for each in feeds[:2]:
        one.step(each)
    try:
        torch.cuda.set_sync_debug_mode("error")
        results = [one.step(each) for each in feeds[2:]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert one.steps == 8
    loss = results[-1]["loss"]
    assert isinstance(loss, torch.Tensor) == as_tensors
    assert not as_tensors or loss.is_cuda
    assert all(buffer.is_cuda for buffer in one.gradient_buffers())


def test_results_are_not_overwritten_by_later_steps() -> None:
    op = onward.OpBuilder()
    x, w = op.input("x", "float32", ("n", 4)), op.initializer("w", np.ones((4, 4), np.float32))
    model = op.model(y=op.MatMul(x, w), copied=op.Reshape(x, [-1, 4]), weight=op.Reshape(w, [-1]))
    one = TrainingSession(
        model,
        losses.CrossEntropy(output="y"),
        optimizers.SGD(lr=1.0),
        providers=[("TorchExecutionProvider", {"device": "cpu"})],
    )
    x_feed = np.ones((2, 4), np.float32)
    feeds = {"x": x_feed, "labels": np.array([0, 1])}
    results = one.step(feeds)
    kept = {name: array.copy() for name, array in results.items()}
    x_feed[...] = 5.0
    one.step(feeds)
    np.testing.assert_array_equal(kept["weight"], np.ones(16))
    for name, array in results.items():
        np.testing.assert_array_equal(array, kept[name])


def test_rates_are_those_of_the_updates_that_were_made() -> None:
    """A skipped update does not use up its learning rate."""
    one = opened(optimizer=optimizers.SGD())
    one.set_rates(3, [[0.5, 0.25, 0.125, *[0.0] * 29]])
    feeds = batches(1)[0]
    draw = Draw(0, 0, 0)
    moved = []
    for bad in (False, True, False):
        x = np.full_like(feeds["x"], np.nan) if bad else feeds["x"]
        before = one.store.read("w1").copy()
        done = one.step({**feeds, "x": x}, draw, 1.0)
        assert done is not None and bool(done[1]) is not bad
        gradient = one.store.read("gradients/w1")
        moved.append((before - one.store.read("w1"), gradient))
    np.testing.assert_allclose(moved[0][0], 0.5 * moved[0][1], atol=1e-6)
    assert not moved[1][0].any()
    np.testing.assert_allclose(moved[2][0], 0.25 * moved[2][1], atol=1e-6)


def test_flags_of_earlier_steps_stay() -> None:
    one, feeds = opened(), batches(1)[0]
    bad = {**feeds, "x": np.full_like(feeds["x"], np.inf)}
    flags = [one.step(each, Draw(0, 0, 0), 1.0)[1] for each in (feeds, bad, feeds)]  # type: ignore[index]
    assert [bool(flag) for flag in flags] == [True, False, True]


def test_changed_gradients_are_checked_again() -> None:
    one = opened(clip_norm=0.1)
    one.compute_gradients(batches(1)[0], Draw(0, 0, 0), 1.0, first=True)
    assert one.finite
    one.store.gradient_buffers()[0][0] = torch.inf
    one.gradients_changed()
    assert not one.finite
    before = one.store.read("w1").copy()
    assert not one.update(1, 1.0)
    np.testing.assert_array_equal(one.store.read("w1"), before)
    assert one.finite  # nothing waits any more


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.1}])
def test_gradients_in_fixed_memory_are_equal(options: dict[str, Any]) -> None:
    """As CUDA graphs want it; here without one."""
    one, other = opened(**options), opened(captured=True, **options)
    [vector] = other.store.gradient_buffers()
    for feeds in batches(4):
        for each in (one, other):
            for first in (True, False):
                each.compute_gradients(feeds, Draw(0, 0, 0), 1.0, first)
            assert each.update(2, 1.0)
            each.forward(feeds, Draw(0, 0, 0))
            each.backward(1.0, first=True)
            assert each.update(1, 1.0)
        assert one.gradient_norm() == pytest.approx(other.gradient_norm())
    assert other.store.gradient_buffers()[0] is vector
    np.testing.assert_allclose(one.store.read("w1"), other.store.read("w1"), atol=1e-7)


def test_draw_is_an_input_of_random_graphs() -> None:
    found = program()
    graph = found.train.graph
    draw = ir.val("onward.draw", dtype=ir.DataType.INT64, shape=ir.Shape([3]))
    graph.inputs.append(draw)
    seen = extend(found.train).Identity(draw)
    seen.name = "seen"
    graph.outputs.append(seen)
    layout = dataclasses.replace(found.layout, outputs=(*found.layout.outputs, "seen"))
    one = open_program(dataclasses.replace(found, layout=layout), TorchProvider("torch", CPU))
    assert one is not None
    for drawn in (Draw(7, 0, 0), Draw(7, 1, 2), Draw(2**64 - 1, 1, 0)):
        results = one.compute_gradients(batches(1)[0], drawn, 1.0, first=True)
        assert results is not None
        assert results["seen"].astype(np.uint64).tolist() == list(drawn)


def test_an_index_out_of_range_names_the_node() -> None:
    op = onward.OpBuilder()
    table = op.initializer("table", np.ones((5, 4), np.float32))
    model = op.model(y=op.Gather(table, op.input("ids", "int64", ("n",))))
    one = TrainingSession(
        model,
        losses.CrossEntropy(),
        optimizers.SGD(),
        providers=[("TorchExecutionProvider", {"device": "cpu"})],
    )
    bad = {"ids": np.array([0, 9]), "labels": np.array([0, 1])}
    for method in ("step", "run_forward", "evaluate"):
        with pytest.raises(FeedError, match="an index that is out of range: Gather refused it"):
            getattr(one, method)(bad)


def test_a_failing_kernel_is_a_provider_error() -> None:
    one = opened()
    failing = mock.Mock(side_effect=RuntimeError("no"))
    with (
        mock.patch.object(one._calls, "_write", return_value=failing),
        pytest.raises(ProviderError, match="torch failed: no"),
    ):
        one.step(batches(1)[0], Draw(0, 0, 0), 1.0)


def test_program_with_an_unsupported_operator_trains_on_the_cpu() -> None:
    with mock.patch.object(TorchProvider, "supports", return_value=False):
        assert open_program(program(), TorchProvider("torch", CPU)) is None
        one = TrainingSession(
            mlp(), losses.CrossEntropy(), optimizers.SGD(), providers=["TorchExecutionProvider"]
        )
    assert isinstance(one._engine, OrtTraining)


@pytest.mark.conformance  # it compiles C++ for many seconds
def test_inductor_fuses_an_update_into_one_pass() -> None:
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    one = TrainingSession(
        mlp(),
        losses.CrossEntropy(),
        optimizers.AdamW(),
        providers=[("InductorExecutionProvider", {"device": "cpu"})],
    )
    [feeds] = batches(1)
    one.run_forward(feeds)
    one.run_backward()
    metrics.reset()
    counters.clear()
    one.update_weights()
    assert metrics.generated_cpp_vec_kernel_count == 1  # others are of single numbers
    assert not counters["graph_break"]


def test_unsupported_operator_is_named(caplog: pytest.LogCaptureFixture) -> None:
    op = onward.OpBuilder()
    x, w = op.input("x", "float32", ("n", 4)), op.initializer("w", np.ones((4, 4), np.float32))
    y = op.MatMul(x, w)
    text = op.input("s", "string", (1,))
    text = op.StringConcat(text, text)
    model = op.model(loss=op.ReduceMean(op.Mul(y, y), keepdims=0), text=text)
    one = TrainingSession(
        model, losses.Output("loss"), optimizers.SGD(), providers=["TorchExecutionProvider"]
    )
    assert "torch has no kernel for 'ai.onnx::StringConcat'" in caplog.text
    assert "each step copies them" in caplog.text
    feeds = {"x": np.ones((2, 4), np.float32), "s": np.array(["b"], object)}
    assert one.step(feeds)["loss"] == pytest.approx(16.0)
