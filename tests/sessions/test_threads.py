"""Many threads call one session, each gets its own answer; branches run side by side."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import onward
from onward.providers.reference import ReferenceExecutable, ReferenceProvider
from onward.providers.torch.provider import TorchExecutable, TorchProvider

CPU, TORCH, REFERENCE = (f"{name}ExecutionProvider" for name in ("CPU", "Torch", "Reference"))
WORKERS, CALLS = 8, 25


def model() -> Any:
    """y = relu(x w) summed: enough nodes that calls overlap."""
    op = onward.OpBuilder()
    y = op.input("x", "float32", ("batch", 16))
    for layer in range(4):
        w = np.random.default_rng(layer).normal(0, 0.3, (16, 16)).astype(np.float32)
        y = op.Relu(op.MatMul(y, op.initializer(f"w{layer}", w)))
    return op.model(y=y)


def divided() -> Any:
    """Two branches that only torch runs (STFT is computed better there), joined by onnxruntime."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (1, 64, 1))
    branches = [op.STFT(op.Mul(x, float(k)), np.array(16), None, np.array(16)) for k in (1, 2)]
    return op.model(y=op.Add(*branches))


def calls_agree(session: Any, feeds: list[dict[str, Any]]) -> None:
    expected = [session.run(None, feed)[0] for feed in feeds]

    def work(number: int) -> None:
        for call in range(CALLS):
            chosen = (number + call) % len(feeds)
            (result,) = session.run(None, feeds[chosen])
            np.testing.assert_allclose(result, expected[chosen], rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))


@pytest.mark.parametrize("provider", [CPU, TORCH, REFERENCE, "OpenVINOExecutionProvider"])
def test_many_threads_call_one_session(provider: str) -> None:
    options = onward.SessionOptions(intra_op_num_threads=1, disable_fallback=True)
    session = onward.InferenceSession(model(), options, [provider])
    rng = np.random.default_rng(0)
    calls_agree(session, [{"x": rng.normal(size=(n, 16)).astype(np.float32)} for n in (1, 3, 7)])


@pytest.mark.integration
@pytest.mark.parametrize("mode", list(onward.ExecutionMode))
def test_many_threads_call_one_divided_model(mode: onward.ExecutionMode) -> None:
    options = onward.SessionOptions(intra_op_num_threads=1, execution_mode=mode)
    session = onward.InferenceSession(divided(), options)
    assert {TORCH, CPU} <= set(session.get_providers())
    rng = np.random.default_rng(0)
    calls_agree(session, [{"x": rng.normal(size=(1, 64, 1)).astype(np.float32)} for _ in range(3)])


def test_independent_branches_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two parts waits for the other to have begun: one after the other would never end."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4,))
    left, right = op.Sin(op.Neg(x)), op.Cos(op.Abs(x))
    built = op.model(y=op.Add(left, right))
    monkeypatch.setattr(TorchProvider, "supports", lambda _, node, __: node.op_type == "Sin")
    monkeypatch.setattr(ReferenceProvider, "supports", lambda _, node, __: node.op_type == "Cos")
    options = onward.SessionOptions(execution_mode=onward.ExecutionMode.ORT_PARALLEL)
    session = onward.InferenceSession(built, options, [TORCH, REFERENCE, CPU])
    both = threading.Barrier(2, timeout=60)
    for kind in (TorchExecutable, ReferenceExecutable):
        run = kind.run

        def meet(self: Any, *given: Any, run: Any = run) -> Any:
            both.wait()
            return run(self, *given)

        monkeypatch.setattr(kind, "run", meet)
    feeds = {"x": np.arange(4, dtype=np.float32)}
    (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, np.sin(-feeds["x"]) + np.cos(feeds["x"]), rtol=1e-5)


@pytest.mark.parametrize("provider", [CPU, TORCH])
def test_run_async_answers_every_call(provider: str) -> None:
    session = onward.InferenceSession(model(), providers=[provider])
    feeds = {"x": np.ones((2, 16), np.float32)}
    (expected,) = session.run(None, feeds)
    answers: list[Any] = []
    arrived = threading.Semaphore(0)

    def callback(results: list[Any], number: int, error: str) -> None:
        answers.append((number, results, error))
        arrived.release()

    for number in range(10):
        session.run_async(None, feeds, callback, number)
    for _ in range(10):
        assert arrived.acquire(timeout=60)
    assert sorted(number for number, _, _ in answers) == list(range(10))
    for _, (result,), error in answers:
        assert not error
        np.testing.assert_allclose(result, expected, rtol=1e-5)
