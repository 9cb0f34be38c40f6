"""One program on several engines: the same parameters, and checkpoints that fit all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as f

from onward import losses, optimizers
from onward.graph.builder import OpBuilder
from onward.optimizers import schedules
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.training_options import TrainingOptions
from onward.providers.options import SessionOptions
from onward.providers.ort.training.executable import OrtTraining
from onward.providers.torch.training.executable import TorchTraining
from onward.sessions.inference import InferenceSession
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.engine_models import CASES, Case
from tests.sessions.training.small import batches, mlp

STEPS = 50
TORCH, INDUCTOR = "TorchExecutionProvider", "InductorExecutionProvider"
ORT = "CPUExecutionProvider"

Engine = tuple[str, dict[str, Any]]
ENGINES: dict[str, Engine] = {
    "onnxruntime": (ORT, {}),
    "torch": (TORCH, {"device": "cpu"}),
    "inductor": (INDUCTOR, {"device": "cpu"}),
    "torch-cuda": (TORCH, {"device": "cuda"}),
    "inductor-cuda": (INDUCTOR, {"device": "cuda"}),
    "cuda-graphs": (INDUCTOR, {"device": "cuda", "mode": "reduce-overhead"}),
}


def marks(engine: str, model: str) -> list[Any]:
    """GPUs are not everywhere, and to compile takes half a minute."""
    on_gpu = "cuda" in engine
    takes_long = engine == "inductor" and model != "mlp"
    return [pytest.mark.gpu] * on_gpu + [pytest.mark.slow] * takes_long


# torch's own, while it compiles: scripts of its past, TensorFloat32, online softmax, empty graphs
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
ON_CPU: list[Engine] = [ENGINES[name] for name in ("onnxruntime", "torch", "inductor")]


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN rounds float32 to TensorFloat32 unless it is told not to."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def session(case: Case, engine: Engine, **options: Any) -> TrainingSession:
    one = TrainingSession(
        case.model(),
        losses.CrossEntropy(output="logits"),
        optimizers.AdamW(lr=0.01),
        TrainingOptions(unbiased_variance=True, **options),
        sess_options=SessionOptions(disable_fallback=True),  # or an engine might stand in
        providers=[engine],
    )
    kind = OrtTraining if engine[0] == ORT else TorchTraining
    assert isinstance(one._engine, kind)
    return one


def close(a: Any, b: Any, tolerance: float) -> None:
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("engine", "name"),
    [pytest.param(e, m, marks=marks(e, m), id=f"{m}-{e}") for e in ENGINES for m in CASES],
)
def test_parameters_match_a_torch_loop(engine: str, name: str) -> None:
    """Masks of Dropout are taken from the step, so that torch drops the same elements."""
    case = CASES[name]
    one = session(case, ENGINES[engine], clip_norm=0.1)
    weights = {n: torch.tensor(a, requires_grad=True) for n, a in one.parameters.items()}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=0.01)
    clipped = 0
    for feeds in case.batches(STEPS):
        results = one.step(feeds)
        masks = {mask: torch.tensor(results[mask]) for mask in case.masks}
        optimizer.zero_grad()
        tensors = {n: torch.tensor(array) for n, array in feeds.items()}
        loss = f.cross_entropy(case.forward(weights, tensors, masks), tensors["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 0.1)
        clipped += bool(norm > 0.1)
        optimizer.step()
        assert results["loss"] == pytest.approx(loss.item(), abs=1e-4)
    assert clipped > 2
    assert all(0.5 < masks[mask].double().mean() < 1.0 for mask in case.masks)
    close(one.parameters, {n: w.detach().numpy() for n, w in weights.items()}, 1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_a_checkpoint_of_one_engine_resumes_on_the_others(name: str, tmp_path: Path) -> None:
    compare_resumed(name, ON_CPU if name == "mlp" else ON_CPU[:2], tmp_path)


@pytest.mark.slow
def test_a_checkpoint_with_statistics_resumes_compiled(tmp_path: Path) -> None:
    compare_resumed("cnn", ON_CPU, tmp_path)


@pytest.mark.gpu
def test_a_checkpoint_resumes_on_a_gpu_and_back(tmp_path: Path) -> None:
    compare_resumed("cnn", [(ORT, {}), (TORCH, {"device": "cuda"})], tmp_path)


def compare_resumed(name: str, engines: list[Engine], folder: Path) -> None:
    case = CASES[name]
    feeds = case.batches(15)
    sessions = [session(case, engine) for engine in engines]
    for i, one in enumerate(sessions):
        for each in feeds[:5]:
            one.step(each)
        one.save(folder / f"{i}.safetensors")
    for i in range(len(engines)):
        for one in sessions:
            one.load(folder / f"{i}.safetensors")
            assert one.steps == 5
            for each in feeds[5:]:
                one.step(each)
        for one in sessions[1:]:
            close(one.parameters, sessions[0].parameters, 1e-6)
            close(one.statistics, sessions[0].statistics, 1e-6)


# -- options, on torch as on onnxruntime -----------------------------------------------------------

MOST = optimizers.AdamW(lr=0.02)
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "accumulation": (MOST, {"accumulate": 3}),
    "clipped": (MOST, {"clip_norm": 0.05}),
    "clipped by value": (MOST, {"clip_value": 0.01}),
    "accumulated and clipped": (MOST, {"accumulate": 2, "clip_norm": 0.05}),
    "scaled": (MOST, {"loss_scale": 128.0}),
    "scaled dynamically": (MOST, {"loss_scale": DynamicLossScale(initial=64.0, interval=3)}),
    "groups": (MOST, {"groups": [Group(parameters="b*", optimizer=optimizers.SGD(lr=0.1))]}),
    "two rates": (MOST, {"groups": [Group(parameters="w1", lr=0.001)]}),
    "frozen": (MOST, {"frozen": ["w1"]}),
    "average": (MOST, {"average": EMA(decay=0.9)}),
    "schedule": (MOST, {"schedule": schedules.Cosine(steps=40)}),
    "nothing skipped": (MOST, {"skip_nonfinite": False}),
    "LAMB": (optimizers.LAMB(lr=0.02), {}),
    "Adafactor": (optimizers.Adafactor(lr=0.02), {"clip_norm": 0.5}),
    "Muon": (
        optimizers.Muon(lr=0.02),
        {"groups": [Group(parameters="b*", optimizer=optimizers.AdamW(lr=0.01))]},
    ),
    "RMSprop": (optimizers.RMSprop(lr=0.002), {"average": EMA(decay=0.9), "accumulate": 2}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_match_between_torch_and_onnxruntime(name: str) -> None:
    optimizer, options = OPTIONS[name]
    one, other = pair(optimizer, **options)
    for feeds in batches(45):  # more than the learning rates that are sent at once
        np.testing.assert_allclose(one.step(feeds)["loss"], other.step(feeds)["loss"], rtol=2e-4)
    same(one, other)


def test_dropout_is_a_function_of_the_seed_and_the_step() -> None:
    case, engine = CASES["transformer"], ENGINES["torch"]
    feeds = case.batches(4)
    one, other = session(case, engine, seed=3), session(case, engine, seed=3)
    for each in feeds[:2]:
        one.step(each)
    other.restore(*one.checkpoint())
    for each in feeds[2:]:
        found, expected = other.step(each), one.step(each)
        for name in found:
            np.testing.assert_array_equal(found[name], expected[name])
    third = session(case, engine, seed=4)
    third.restore(*one.checkpoint())  # which has its seed
    same(one, third, 0.0)
    masks = [session(case, engine, seed=seed).step(feeds[0])["mask_1"] for seed in (3, 4)]
    assert not np.array_equal(*masks)


@pytest.mark.slow
def test_options_do_the_same_compiled_for_any_shape() -> None:
    options = {"accumulate": 2, "clip_norm": 0.5, "loss_scale": 8.0, "average": EMA(decay=0.9)}
    case = CASES["cnn"]
    one, other = (
        session(case, engine, **options)
        for engine in (ENGINES["torch"], (INDUCTOR, {"device": "cpu", "dynamic": True}))
    )
    for i, feeds in enumerate(case.batches(8)):
        each = {name: array[: 6 - i // 2] for name, array in feeds.items()}
        for part in (one, other):
            part.step(each)
    for feeds in case.batches(2):
        for part in (one, other):
            part.run_forward(feeds)
            part.run_backward()
            part.update_weights()
    same(one, other)


def pair(optimizer: Any, dtype: Any = "float32", **options: Any) -> list[TrainingSession]:
    """A session on onnxruntime, and one in torch."""
    return [
        TrainingSession(
            mlp(dtype=dtype),
            losses.CrossEntropy(),
            optimizer,
            TrainingOptions(**options),
            providers=[(name, {"device": "cpu"} if name == TORCH else {})],
        )
        for name in (ORT, TORCH)
    ]


def same(one: TrainingSession, other: TrainingSession, tolerance: float = 2e-5) -> None:
    assert (one.steps, one.skipped_steps) == (other.steps, other.skipped_steps)
    assert (one.loss_scale, one.learning_rate) == (other.loss_scale, other.learning_rate)
    close(one.parameters, other.parameters, tolerance)
    close(one.averages, other.averages, tolerance)
    tensors, found = one.checkpoint()[0], other.checkpoint()[0]
    close(tensors, found, max(tolerance, 1e-4))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("scale", [None, DynamicLossScale(initial=64.0, interval=3)])
def test_a_batch_that_is_not_finite_is_skipped(scale: Any, accumulate: int) -> None:
    one, other = pair(MOST, loss_scale=scale, accumulate=accumulate)
    for i, feeds in enumerate(batches(12)):
        if i in (3, 8):
            feeds["x"][0, 0] = np.nan if i == 3 else np.inf
        one.step(feeds)
        other.step(feeds)
    assert other.skipped_steps == 2
    same(one, other)


def test_large_gradients_are_finite_though_their_sum_is_not() -> None:
    one, other = pair(optimizers.SGD(lr=1e-38), loss_scale=3e38)
    for feeds in batches(3):
        one.step(feeds)
        other.step(feeds)
    assert other.skipped_steps == 0
    same(one, other)


def test_doubles_are_trained_in_doubles() -> None:
    one, other = pair(MOST, dtype="float64", accumulate=2)
    for feeds in batches(20):
        feeds["x"] = feeds["x"].astype(np.float64)
        one.step(feeds)
        other.step(feeds)
    assert other.parameters["w1"].dtype == np.float64
    same(one, other, 1e-12)


def test_a_model_of_bfloat16_is_trained_in_float32() -> None:
    import ml_dtypes

    one = TrainingSession(
        mlp(dtype=np.dtype(ml_dtypes.bfloat16)),
        losses.CrossEntropy(),
        optimizers.AdamW(lr=0.02),
        providers=[TORCH],
    )
    feeds = batches(40)
    for each in feeds:
        each["x"] = each["x"].astype(ml_dtypes.bfloat16)
    found = [float(one.step(each)["loss"]) for each in feeds]
    assert one.parameters["w1"].dtype == np.float32
    assert found[-1] < 0.7 * found[0]
    bits = np.ascontiguousarray(one.parameters["w1"]).view(np.uint32) & 0xFFFF
    assert bits.any()  # more digits than bfloat16 has


def test_a_frozen_batch_normalization_keeps_its_statistics() -> None:
    case = CASES["cnn"]
    for engine in ON_CPU[:2]:
        one = session(case, engine, frozen_batch_norms=["*"])
        before = {name: array.copy() for name, array in one.parameters.items()}
        for feeds in case.batches(3):
            one.step(feeds)
        assert not one.statistics
        assert not np.array_equal(one.parameters["k"], before["k"])


def test_forward_backward_update_match_a_step() -> None:
    case = CASES["cnn"]
    for engine in ON_CPU[:2]:
        whole, apart = session(case, engine), session(case, engine)
        for feeds in case.batches(4):
            expected, found = whole.step(feeds), apart.run_forward(feeds)
            np.testing.assert_allclose(expected["loss"], found["loss"], rtol=1e-6)
            apart.run_backward()
            assert set(apart.get_gradients()) == set(apart.parameters)
            assert apart.update_weights()
        close(whole.parameters, apart.parameters, 1e-6)
        close(whole.statistics, apart.statistics, 1e-6)


def test_a_hook_changes_gradients_before_the_update() -> None:
    one, other = pair(optimizers.SGD(lr=0.1), clip_norm=0.01)

    def halve(buffers: list[Any]) -> None:
        for buffer in buffers:
            buffer *= 0.5

    one.add_gradient_hook(halve)
    remove = other.add_gradient_hook(halve)
    for feeds in batches(5):
        one.step(feeds)
        other.step(feeds)
    same(one, other)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    remove()


def test_a_pending_micro_batch_is_saved_and_resumed_elsewhere(tmp_path: Path) -> None:
    one, other = pair(MOST, accumulate=2)
    feeds = batches(4)
    for each in feeds[:3]:
        one.step(each)
    one.save(tmp_path / "one.safetensors")
    other.load(tmp_path / "one.safetensors")
    one.step(feeds[3])
    other.step(feeds[3])
    same(one, other)


def test_an_exported_model_has_the_trained_parameters(tmp_path: Path) -> None:
    case = CASES["cnn"]
    one = session(case, (TORCH, {"device": "cpu"}))
    for feeds in case.batches(5):
        one.step(feeds)
    one.export(tmp_path / "model.onnx")
    x = feeds["x"]
    [logits] = InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(logits, one.predict({"x": x})["logits"], rtol=1e-4, atol=1e-5)
    evaluated = one.evaluate(feeds)
    np.testing.assert_allclose(evaluated["logits"], logits, rtol=1e-4, atol=1e-5)


def test_a_saved_program_trains_on_torch_too(tmp_path: Path) -> None:
    one, _ = pair(MOST)
    folder = one.program.save(tmp_path / "program")
    other = TrainingSession(folder, providers=[TORCH])
    assert isinstance(other._engine, OrtTraining)
    for feeds in batches(3):
        one.step(feeds)
        other.step(feeds)
    close(one.parameters, other.parameters, 1e-5)


@pytest.mark.gpu
def test_auto_trains_convolutions_on_the_gpu(tmp_path: Path) -> None:
    """torch rounds them to TF32 there, which looked like another gradient."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 16, 32, 32))
    random = np.random.default_rng(0)
    w = op.initializer("w", random.normal(size=(64, 16, 3, 3)).astype(np.float32) / 12)
    scores = op.ReduceMean(op.Relu(op.Conv(x, w)), [2, 3], keepdims=0)
    auto = ("auto", {"providers": ["cpu", "torch"], "folder": str(tmp_path)})
    loss, optimizer = losses.CrossEntropy(), optimizers.SGD(lr=0.1)
    session = TrainingSession(op.model(scores=scores), loss, optimizer, providers=[auto])
    images = random.normal(size=(256, 16, 32, 32)).astype(np.float32)
    session.step({"x": images, "labels": np.arange(256) % 64})
    assert session.tuning_result is not None
    errors = {str(row.candidate): row.error for row in session.tuning_result.rows}
    assert not any(errors.values()), errors
    assert session.get_providers() == ["TorchExecutionProvider"]
