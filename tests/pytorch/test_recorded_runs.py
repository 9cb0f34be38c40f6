"""Recorded calls of a module compute what the module computes, however they are interleaved."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402

from onward.pytorch import captured_module, recorded_runs  # noqa: E402
from onward.pytorch.captured_module import CapturedModule  # noqa: E402
from onward.pytorch.module import Module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


class Replay:
    """As a CUDA graph: it reads the memory that it was recorded with, and writes to it."""

    replays = 0

    def __init__(self, function: Callable[[Any], Any], values: Any, results: Any) -> None:
        self._function, self._values, self._results = function, values, results

    def replay(self) -> None:
        Replay.replays += 1
        again = self._function(dict(self._values))
        for old, new in zip(_tensors(self._results), _tensors(again)):
            old.copy_(new)


def _tensors(results: Any) -> list[Any]:
    made, packed = results
    return [*made, *([] if packed._buffer is None else [packed._buffer])]


class PlainPool:
    """Records functions on a CPU."""

    failure: Exception | None = None
    recorded = 0

    def record_sequence(self, functions: Any, values: Any) -> list[tuple[Any, Any]]:
        if self.failure is not None:
            raise self.failure
        shared, found = dict(values), []
        for function in functions:
            PlainPool.recorded += 1
            results = function(shared)
            found.append((Replay(function, shared, results), results))
        return found

    def stream(self) -> int | None:
        return 0


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        monkeypatch.setattr(CapturedModule, "_graph_pool", lambda self, device: PlainPool())
    Replay.replays = PlainPool.recorded = 0
    return str(request.param)


class Net(nn.Module):
    """Returns a loss and its scores; has buffers that a call changes and its backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.scale = nn.Buffer(torch.ones(6))

    def forward(self, x: Any, labels: Any) -> Any:
        hidden = torch.relu(self.norm(self.first(x))) * self.scale.clone()
        self.scale.mul_(0.9)
        scores = self.last(hidden)
        return nn.functional.cross_entropy(scores, labels), scores


def pair(device: str, **options: Any) -> tuple[nn.Module, Module]:
    torch.manual_seed(0)
    net = Net().to(device)
    return net, Module(copy.deepcopy(net), {"fallback": "forbid", **options})


def batches(device: str, count: int) -> Iterator[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(4, 5, generator=generator)
        yield x.to(device), torch.randint(3, (4,), generator=generator).to(device)


def assert_equal(net: nn.Module, ours: Module) -> None:
    for (name, expected), (_, found) in zip(net.named_parameters(), ours.named_parameters()):
        torch.testing.assert_close(found.grad, expected.grad, msg=lambda m, n=name: f"{n}: {m}")
    for expected, found in zip(net.state_dict().values(), ours.state_dict().values()):
        torch.testing.assert_close(found, expected)


def record(ours: Module, device: str, *others: nn.Module) -> None:
    """Enough calls for a recording; the others run the same."""
    for x, labels in batches(device, 3):
        for each in (ours, *others):
            each(x, labels)[0].backward()
    assert ours.programs[0].is_recorded


def test_a_training_equals_that_of_the_module(device: str) -> None:
    net, ours = pair(device)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, ours)]
    losses: list[tuple[Any, Any]] = []
    for step, (x, labels) in enumerate(batches(device, 9)):
        losses.append((net(x, labels)[0], ours(x, labels)[0]))
        for loss in losses[-1]:
            loss.backward()
        assert_equal(net, ours)
        if step % 2:  # gradients add up over two batches
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 4 == 1)
    assert ours.programs[0].is_recorded
    if device == "cpu":  # nine forwards and backwards, of which two run as they are
        assert (PlainPool.recorded, Replay.replays) == (2, 14)
    torch.testing.assert_close([b for _, b in losses], [a for a, _ in losses])


def test_segments_are_recorded_one_by_one(device: str) -> None:
    net, ours = pair(device, segments=2)
    record(ours, device, net)
    assert_equal(net, ours)
    if device == "cpu":
        assert PlainPool.recorded == 3


def test_a_call_does_not_overwrite_the_one_before_it(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    calls = [(net(*batch), ours(*batch)) for batch in batches(device, 3)]  # all are pending
    for (expected, _), (found, _) in calls[::-1]:
        (2 * expected).backward(retain_graph=True)
        (2 * found).backward(retain_graph=True)
    for expected, found in calls:
        torch.testing.assert_close(found[1], expected[1])
    assert_equal(net, ours)
    for batch in batches(device, 2):  # the first graphs may still run
        for each in (net, ours):
            each(*batch)[0].backward()
    for (expected, _), (found, _) in calls:
        expected.backward()
        found.backward()
    assert_equal(net, ours)


def test_a_call_without_backward_is_replayed_after_it_was_dropped(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    runs = []
    program = ours.programs[0]
    choose = program._compile(program._expected).recorded
    for batch in batches(device, 2):
        expected, found = net(*batch), ours(*batch)
        runs.append(choose._last)
        torch.testing.assert_close(found, expected)
        del expected, found
        gc.collect()
    assert runs[0] is not runs[1]  # both were replayed
    for batch in batches(device, 1):
        for each in (net, ours):
            each(*batch)[0].backward()
    assert_equal(net, ours)


def test_parameters_that_move_are_recorded_again_a_few_times(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    for batch in batches(device, recorded_runs.MOST_RECORDINGS + 1):
        for parameter in ours.parameters():
            parameter.data = parameter.data.clone()
        for each in (net, ours):
            each(*batch)[0].backward()
        assert_equal(net, ours)
    assert not ours.programs[0].is_recorded
    if device == "cpu":
        assert PlainPool.recorded == 2 * recorded_runs.MOST_RECORDINGS


def test_the_gradient_of_an_input_and_other_strides(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    wide = torch.randn(5, 8, device=device).t()[::2]
    labels = torch.tensor([0, 1, 2, 0], device=device)
    for each in (net, ours):
        each(wide, labels)[0].backward()
    assert_equal(net, ours)
    found = []
    for each in (net, ours):
        for _ in range(4):
            x = wide.detach().clone().requires_grad_()
            each(x, labels)[0].backward()
            found.append(x.grad)
    torch.testing.assert_close(found[4:], found[:4])


def test_a_cotangent_that_was_not_expected(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    for batch in batches(device, 6):  # the program expected the loss alone
        for each in (net, ours):
            loss, scores = each(*batch)
            (loss + scores.square().sum()).backward()
        assert_equal(net, ours)
    assert ours.programs[0].is_recorded


def test_checkpointing_computes_the_call_again(device: str) -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any, labels: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(self.inner, x, labels, use_reentrant=False)[0]

    net, ours = pair(device)
    record(ours, device, net)
    for batch in batches(device, 2):
        for each in (net, ours):
            with torch.no_grad():
                each.scale.fill_(1.0)
            Outer(each)(*batch).backward()
        assert_equal(net, ours)


def test_saved_values_may_be_offloaded(device: str) -> None:
    net, ours = pair(device)
    record(ours, device, net)
    for batch in batches(device, 2):
        for each in (net, ours):
            with torch.autograd.graph.save_on_cpu():
                loss, _ = each(*batch)
            loss.backward()
        assert_equal(net, ours)


def test_what_cannot_be_recorded_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CapturedModule, "_graph_pool", lambda self, device: PlainPool())
    monkeypatch.setattr(PlainPool, "failure", RuntimeError("a copy\nto the host"))
    net, ours = pair("cpu")
    with caplog.at_level(logging.INFO, "onward"):
        for batch in batches("cpu", 5):
            for each in (net, ours):
                each(*batch)[0].backward()
    assert_equal(net, ours)
    assert [m for m in caplog.messages if "CUDA graphs" in m] == [
        "a module's calls cannot be recorded as CUDA graphs, they run as they are: a copy"
    ]


def test_only_whole_modules_on_a_gpu_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_module, "GraphPool", lambda device: device)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    _, ours = pair("cpu")
    assert ours._captured._graph_pool(gpu) == gpu
    assert ours._captured._graph_pool(cpu) is None
    assert CapturedModule(ours.first, ours.options, "first")._graph_pool(gpu) is None
    assert pair("cpu", cuda_graphs=False)[1]._captured._graph_pool(gpu) is None
