"""Optimizer state in bfloat16: half the bytes, on every engine, and training converges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward import losses, optimizers
from onward.distributed.planner.bucket_sizes import measure_buckets
from onward.optimizers import stored_slots
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")

ORT = "CPUExecutionProvider"
TORCH = ("TorchExecutionProvider", {"device": "cpu"})
INDUCTOR = ("InductorExecutionProvider", {"device": "cpu"})
OPTIMIZERS: dict[str, Any] = {
    "AdamW": optimizers.AdamW(lr=0.01, state_dtype="bf16"),
    "Adam": optimizers.Adam(lr=0.01, amsgrad=True, state_dtype="bf16"),
    "LAMB": optimizers.LAMB(lr=0.01, state_dtype="bf16"),
    "Lion": optimizers.Lion(lr=0.001, state_dtype="bf16"),
    "SGD": optimizers.SGD(lr=0.1, momentum=0.9, state_dtype="bf16"),
}


def opened(optimizer: Any, provider: Any = ORT, **options: Any) -> TrainingSession:
    return TrainingSession(mlp(), losses.CrossEntropy(), optimizer, options, providers=[provider])


def trained(session: TrainingSession, steps: int = 20) -> TrainingSession:
    for feeds in batches(steps):
        session.step(feeds)
    return session


def slots_of(session: TrainingSession) -> dict[str, Any]:
    found = session.checkpoint()[0]
    return {name: array for name, array in found.items() if name.startswith("optimizer/")}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_engines_agree(name: str) -> None:
    one, other = (trained(opened(OPTIMIZERS[name], each)) for each in (ORT, TORCH))
    for parameter, tensor in one.parameters.items():
        np.testing.assert_allclose(other.parameters[parameter], tensor, atol=2e-4)
    found = slots_of(other)
    for slot, tensor in slots_of(one).items():
        assert tensor.dtype.name == found[slot].dtype.name == "bfloat16"
        a, b = (np.asarray(each, np.float32) for each in (tensor, found[slot]))
        np.testing.assert_allclose(a, b, rtol=0.05, atol=1e-3 * np.abs(a).max())


@pytest.mark.integration
def test_inductor_rounds_as_torch_does(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (trained(opened(OPTIMIZERS["AdamW"], each), 6) for each in (TORCH, INDUCTOR))
    found = slots_of(other)
    same = [np.mean(tensor == found[name]) for name, tensor in slots_of(one).items()]
    assert min(same) > 0.95  # other sums, so that a few elements are rounded otherwise
    assert "Inductor cannot compile" not in caplog.text


@pytest.mark.parametrize("provider", [ORT, TORCH], ids=["onnxruntime", "torch"])
@pytest.mark.parametrize("name", ["AdamW", "LAMB", "SGD"])
def test_training_converges_as_in_float32(name: str, provider: Any) -> None:
    narrow = OPTIMIZERS[name]
    wide = type(narrow)(**{**vars(narrow), "state_dtype": None})
    feeds = batches(150, size=32)
    ends = []
    for optimizer in (wide, narrow):
        session = opened(optimizer, provider)
        seen = [float(session.step(each)["loss"]) for each in feeds]
        ends.append(np.mean(seen[-20:]))
    assert ends[0] < 0.6 * seen[0]
    assert ends[1] == pytest.approx(ends[0], rel=0.03)


def second_moments(state_dtype: str | None) -> tuple[float, float]:
    """The mean second moment after large gradients, and after 600 steps without gradients."""
    session = opened(optimizers.AdamW(lr=0.0, state_dtype=state_dtype, weight_decay=0.0))
    trained(session)
    found = []
    for steps in (0, 600):
        for _ in range(steps):
            session.set_gradients({})
            session.update_weights()
        slot = slots_of(session)["optimizer/exp_sum_sq/w1"]
        found.append(float(np.asarray(slot, np.float64).mean()))
    return found[0], found[1]


def test_second_moments_decay_as_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = second_moments(None)
    assert last == pytest.approx(first * 0.999**600, rel=1e-4)
    assert second_moments("bf16")[1] == pytest.approx(last, rel=0.05)
    monkeypatch.setattr(stored_slots, "_SLOW", 1.0)  # to the nearest: they stay where they are
    frozen = second_moments("bf16")
    assert frozen[1] == frozen[0] > 1.5 * last


@pytest.mark.parametrize("provider", [ORT, TORCH], ids=["onnxruntime", "torch"])
@pytest.mark.parametrize("name", ["AdamW", "LAMB"])
def test_a_resumed_run_repeats_bit_for_bit(name: str, provider: Any, tmp_path: Path) -> None:
    options = {"average": EMA(decay=0.9), "accumulate": 2, "clip_norm": 0.5}
    one, other = (opened(OPTIMIZERS[name], provider, **options) for _ in range(2))
    trained(one, 7).save(tmp_path / "state")
    other.load(tmp_path / "state")
    tensors = [trained(each, 9).checkpoint()[0] for each in (one, other)]
    assert {n: t.tobytes() for n, t in tensors[0].items()} == {
        n: t.tobytes() for n, t in tensors[1].items()
    }
    average = tensors[0]["optimizer/average/w1"]
    assert average.dtype == np.float32  # it moves too slowly


def test_a_saved_program_has_the_types(tmp_path: Path) -> None:
    optimizer = OPTIMIZERS["AdamW"]
    program = onward.compile_training(mlp(), losses.CrossEntropy(), optimizer)
    program.save(tmp_path / "program")
    one, other = TrainingSession(tmp_path / "program"), opened(optimizer)
    trained(one), trained(other)
    for name, tensor in slots_of(other).items():
        np.testing.assert_array_equal(slots_of(one)[name], tensor)


def test_groups_may_differ() -> None:
    group = Group(parameters="w1", state_dtype=None)
    found = slots_of(trained(opened(OPTIMIZERS["AdamW"], groups=[group])))
    kinds = {name.split("/")[2]: array.dtype.name for name, array in found.items()}
    assert kinds == {"w1": "float32", "b1": "bfloat16", "w2": "bfloat16", "b2": "bfloat16"}


@pytest.mark.parametrize("name", ["AdamW", "LAMB"])
def test_memory_is_counted(name: str) -> None:
    narrow = OPTIMIZERS[name]
    wide = type(narrow)(**{**vars(narrow), "state_dtype": None})
    held = {}
    for kind, optimizer in {"wide": wide, "narrow": narrow}.items():
        program = onward.compile_training(mlp(batch=12), losses.CrossEntropy(), optimizer)
        stores: list[Any] = [opened(optimizer, each)._engine.store for each in (ORT, TORCH)]
        [bucket] = measure_buckets(program.layout)
        held[kind] = [
            onward.memory_report(program).optimizer,
            *(store.bytes_held()["slots"] for store in stores),
            bucket.slots * bucket.nbytes + bucket.separate,
        ]
    assert held["wide"] == [2 * size for size in held["narrow"]]


@pytest.mark.gpu
def test_recorded_steps_round_as_on_a_cpu() -> None:
    one = trained(opened(OPTIMIZERS["AdamW"], TORCH))
    other = trained(opened(OPTIMIZERS["AdamW"], ("InductorExecutionProvider", {"device": "cuda"})))
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], tensor, atol=1e-3)
