"""The whole step: forward, backward and update as one function equal the separate ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from onward import losses, optimizers
from onward.optimizers import EMA, Group
from onward.programs.build import build_program
from onward.providers.choose import choose
from onward.providers.options import SessionOptions
from onward.providers.provider import Draw
from onward.providers.torch.inductor import make_inductor
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.captured_calls import CapturedCalls
from onward.providers.torch.training.executable import TorchTraining, open_program
from onward.providers.torch.training.graph_pool import GraphPool
from tests.sessions.training.small import batches, mlp

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_norm": 0.05},
    "scaled": {"loss_scale": 128.0},
    "averaged": {"average": EMA(decay=0.9)},
    "grouped": {"groups": [Group(parameters="w2", lr=0.1)]},
}


def opened(*, whole: bool, device: str = "cpu", **options: Any) -> TorchTraining:
    """A program in torch; `whole`: captured by dynamo, as for Inductor."""

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    provider = TorchProvider(
        "InductorExecutionProvider" if whole else "TorchExecutionProvider",
        torch.device(device),
        step_compiler=compiler if whole else None,
        captures_steps=device == "cuda",
    )
    program = build_program(mlp(), losses.CrossEntropy(), optimizers.AdamW(lr=0.01), options)
    found = open_program(program, provider)
    assert found is not None
    found.set_rates(0, [[0.01] * found.lookahead] * len(found.store.updates))
    return found


def train(engine: TorchTraining, scale: float = 1.0, spoiled: int = -1) -> list[float]:
    """Train on six batches, one of them not finite; the losses and norms."""
    seen = []
    for i, feeds in enumerate(batches(6)):
        x = np.full_like(feeds["x"], np.nan) if i == spoiled else feeds["x"]
        done = engine.step({**feeds, "x": x}, Draw(0, i, 0), scale)
        assert done is not None and bool(done[1]) is (i != spoiled)
        if i != spoiled:
            seen += [float(done[0]["loss"]), engine.gradient_norm()]
    return seen


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_the_whole_step_equals_separate_functions(case: str) -> None:
    scale = CASES[case].get("loss_scale", 1.0)
    one, other = opened(whole=False, **CASES[case]), opened(whole=True, **CASES[case])
    np.testing.assert_allclose(train(one, scale, 2), train(other, scale, 2), rtol=1e-5)
    for name in one._layout.tensors():
        np.testing.assert_allclose(one.store.read(name), other.store.read(name), atol=1e-6)


@pytest.mark.integration
def test_whole_steps_and_accumulated_ones_mix() -> None:
    one, other = opened(whole=False), opened(whole=True)
    first, second, third = batches(3)
    for engine in (one, other):
        engine.step(first, Draw(0, 0, 0), 1.0)
        engine.compute_gradients(second, Draw(0, 1, 0), 1.0, first=True)
        engine.compute_gradients(third, Draw(0, 1, 1), 1.0, first=False)
        assert engine.update(2, 1.0)
        engine.step(first, Draw(0, 2, 0), 1.0)
    np.testing.assert_allclose(one.store.read("w1"), other.store.read("w1"), atol=1e-6)
    assert one.gradient_norm() == pytest.approx(other.gradient_norm(), rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_equal_separate_functions(case: str) -> None:
    scale = CASES[case].get("loss_scale", 1.0)
    one = opened(whole=False, **CASES[case])
    other = opened(whole=True, device="cuda", **CASES[case])
    np.testing.assert_allclose(train(one, scale, 2), train(other, scale, 2), rtol=1e-4)
    np.testing.assert_allclose(one.store.read("w1"), other.store.read("w1"), atol=1e-5)


@pytest.mark.gpu
def test_each_shape_has_a_graph_and_results_are_copies() -> None:
    total = torch.zeros(1, device="cuda")

    def add(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total.add_(x.sum())
        return (x * 2,)

    calls = CapturedCalls(add, GraphPool(torch.device("cuda")))
    kept = []
    for size in (2, 3, 2, 3, 2, 3):
        kept.append(calls(torch.ones(size, device="cuda") * size)[0])
    assert [y.tolist() for y in kept] == [[2.0 * n] * n for n in (2, 3, 2, 3, 2, 3)]
    assert float(total) == 3 * (4 + 9)
    assert len(calls._recorded) == 2


@pytest.mark.gpu
def test_a_function_that_waits_for_the_device_runs_unrecorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = CapturedCalls(lambda x: (x * float(x.sum()),), GraphPool(torch.device("cuda")))
    x = torch.ones(2, device="cuda")
    stream = torch.cuda.current_stream()
    assert [calls(x)[0].tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    assert "cannot be recorded as a CUDA graph" in caplog.text
    assert torch.cuda.current_stream() == stream
    numbers = [torch.rand(2, device="cuda").tolist() for _ in range(2)]
    assert numbers[0] != numbers[1]  # random numbers are drawn, and go on


@pytest.mark.parametrize("capture", [True, False])
def test_capture_is_an_option_of_inductor(capture: bool) -> None:
    option = {"device": "cpu", "capture": capture}
    [asked] = choose([("InductorExecutionProvider", option)], None, SessionOptions()).listed
    assert asked == ("InductorExecutionProvider", option)
    provider = make_inductor(option, SessionOptions())
    assert not provider.captures_steps  # only a GPU has CUDA graphs
