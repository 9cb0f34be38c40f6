"""A dynamic loss scale on the device does what the host does, bit for bit, and reads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onward import losses, optimizers
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.providers.torch.training.executable import TorchTraining
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")

TORCH = ("TorchExecutionProvider", {"device": "cpu"})
INDUCTOR = ("InductorExecutionProvider", {"device": "cpu"})
ORT = "CPUExecutionProvider"
GROWING = DynamicLossScale(initial=2.0**126, growth=1.7, backoff=0.3, interval=2)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_norm": 0.05},
    "accumulated": {"accumulate": 2, "clip_norm": 0.5},
    "not skipped": {"skip_nonfinite": False, "loss_scale": DynamicLossScale(interval=2)},
}


def opened(provider: Any, **options: Any) -> TrainingSession:
    given = {"loss_scale": GROWING, **options}
    optimizer = optimizers.AdamW(lr=0.01)
    return TrainingSession(mlp(), losses.CrossEntropy(), optimizer, given, providers=[provider])


def feeds_of(count: int) -> list[dict[str, Any]]:
    """Batches of which one has gradients that overflow at a large scale, and one at any."""
    found = batches(count)
    for i, factor in ((2, 300), (3, np.inf)):
        found[i]["x"] = found[i]["x"] * np.float32(factor)
    return found


def trained(session: TrainingSession, steps: int = 16) -> list[Any]:
    return [np.asarray(session.step(feeds)["loss"]).tobytes() for feeds in feeds_of(steps)]


def tensors(session: TrainingSession) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in session.checkpoint()[0].items()}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("provider", "case"),
    [*((TORCH, case) for case in OPTIONS), (INDUCTOR, "clipped"), (INDUCTOR, "accumulated")],
)
def test_a_kept_scale_equals_the_hosts(
    provider: Any, case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = opened(provider, **OPTIONS[case])
    losses_seen, scale = trained(kept), kept.loss_scale
    monkeypatch.delattr(TorchTraining, "keep_scale")
    host = opened(provider, **OPTIONS[case])
    assert trained(host) == losses_seen
    assert tensors(host) == tensors(kept)
    assert (host.steps, host.skipped_steps) == (kept.steps, kept.skipped_steps)
    assert host.loss_scale == scale != OPTIONS[case].get("loss_scale", GROWING).initial
    assert host.gradient_norm == kept.gradient_norm or case == "not skipped"
    assert kept.skipped_steps or case == "not skipped"
    assert "Inductor cannot compile" not in caplog.text


@pytest.mark.integration
@pytest.mark.parametrize("provider", [TORCH, INDUCTOR], ids=["torch", "inductor"])
def test_a_kept_scale_goes_the_way_of_onnxruntimes(provider: Any) -> None:
    one, other = opened(ORT), opened(provider)
    for feeds in feeds_of(16):
        one.step(feeds)
        other.step(feeds)
        assert one.loss_scale == other.loss_scale
    assert (one.steps, one.skipped_steps) == (other.steps, other.skipped_steps)
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(tensor, other.parameters[name], atol=1e-5)


@pytest.mark.parametrize("second", [TORCH, ORT], ids=["torch", "onnxruntime"])
def test_a_checkpoint_has_the_scale(second: Any, tmp_path: Path) -> None:
    one, other = opened(TORCH), opened(second)
    for feeds in feeds_of(7):
        one.step(feeds)
    one.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert other.loss_scale == one.loss_scale
    assert other.checkpoint()[1]["training"] == one.checkpoint()[1]["training"]
    for feeds in batches(6):
        one.step(feeds)
        other.step(feeds)
    assert other.loss_scale == one.loss_scale
    if second is TORCH:
        assert tensors(one) == tensors(other)


class Reads(TorchDispatchMode):
    """Counts the numbers that the host reads from tensors."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_of(session: TrainingSession) -> int:
    with Reads() as reads:
        for feeds in feeds_of(16):
            session.step(feeds)
    return reads.count


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_read_nothing_from_the_device(
    accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads_of(opened(TORCH, accumulate=accumulate)) == 0
    monkeypatch.delattr(TorchTraining, "keep_scale")
    assert reads_of(opened(TORCH, accumulate=accumulate)) == 16 // accumulate


def test_gradients_are_divided_by_a_kept_scale() -> None:
    session = opened(TORCH, loss_scale=DynamicLossScale(initial=1024.0))
    feeds = batches(1)[0]
    session.run_forward(feeds)
    session.run_backward()
    found = session.get_gradients()
    plain = opened(ORT, loss_scale=None)
    plain.run_forward(feeds)
    plain.run_backward()
    for name, gradient in plain.get_gradients().items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-6)
    session.set_gradients(found)
    assert session.update_weights() and session.steps == 1


def test_a_closed_session_still_has_the_scale() -> None:
    session = opened(TORCH)
    for feeds in feeds_of(5):
        session.step(feeds)
    scale = session.loss_scale
    session.close()
    assert session.loss_scale == scale != GROWING.initial


@pytest.mark.gpu
@pytest.mark.parametrize("case", OPTIONS)
def test_recorded_steps_keep_the_scale(case: str) -> None:
    options = OPTIONS[case]
    one = opened(TORCH, **options)
    other = opened(("InductorExecutionProvider", {"device": "cuda"}), **options)
    for feeds in feeds_of(16):
        one.step(feeds)
        other.step(feeds)
    assert other.loss_scale == one.loss_scale
    assert (one.steps, one.skipped_steps) == (other.steps, other.skipped_steps)
    if case != "not skipped":
        for name, tensor in one.parameters.items():
            np.testing.assert_allclose(tensor, other.parameters[name], atol=1e-4)
