"""Products of linear layers in 8-bit floats: rounding, scales, losses near bfloat16's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import Memory, losses, optimizers
from onward.errors import OptionError, ProviderError
from onward.graph.builder import OpBuilder
from onward.graph.scopes import COMPOSITES
from onward.passes.float8_functions import add_float8_function
from onward.programs.precision.float8_products import HISTORY, STEPS
from onward.programs.precision.precision import Precision
from onward.providers.low_precision import check_float8
from onward.runner.architectures.new_model import new_model
from tests.programs.precision.precision_models import export, make, open_session, session_losses

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")

TORCH = ("TorchExecutionProvider", {"device": "cpu"})
INDUCTOR = ("InductorExecutionProvider", {"device": "cpu"})
CUDA = ("InductorExecutionProvider", {"device": "cuda"})
BF16 = Precision(emulated=True)
FP8 = Precision(products="fp8", emulated=True)
WIDTH, CLASSES = 32, 16


def weight(op: OpBuilder, name: str, *shape: int) -> ir.Value:
    rng = np.random.default_rng(len(name) + sum(map(ord, name)))
    return op.initializer(name, (rng.normal(size=shape) * 0.2).astype(np.float32))


def network(width: int = WIDTH, *, time: int = 0) -> ir.Model:
    """A Gemm with a bias, two MatMuls and a last layer; with `time`, of sequences."""
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", time, width) if time else ("batch", width))
    h = x if time else op.Gemm(x, weight(op, "w0", width, width), weight(op, "b0", width), transB=1)
    for i in (1, 2):
        h = op.Tanh(op.MatMul(h, weight(op, f"w{i}", width, width)))
    if time:
        h = op.ReduceMean(h, np.array([1]), keepdims=0)
    return op.model(scores=op.MatMul(h, weight(op, "last", width, CLASSES)))


def batches(count: int, rows: int = 40, time: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    shape = (rows, time, WIDTH) if time else (rows, WIDTH)
    xs = rng.normal(size=(count, *shape)).astype(np.float32)
    means = xs.mean(2) if time else xs
    return [{"x": x, "labels": m[:, :CLASSES].argmax(1)} for x, m in zip(xs, means)]


def opened(
    precision: Any = FP8,
    provider: Any = TORCH,
    model: ir.Model | None = None,
    *,
    rate: float = 0.01,
    **options: Any,
) -> onward.TrainingSession:
    return onward.TrainingSession(
        network() if model is None else model,
        losses.CrossEntropy(output="scores"),
        optimizers.AdamW(lr=rate),
        {"precision": precision, **options},
        providers=[provider],
    )


def trained(session: onward.TrainingSession, feeds: Any) -> Any:
    return np.array([float(session.step(each)["loss"]) for each in feeds])


def calls(session: onward.TrainingSession, name: str = "Float8Linear") -> int:
    program = session.program.neutral
    assert program is not None
    return sum(node.op_type == name for node in program.train.graph)


def history_of(session: onward.TrainingSession) -> Any:
    return session.checkpoint()[0][HISTORY]


# -- the functions -----------------------------------------------------------------------------


def call_model(name: str, count: int, kinds: list[Any], shapes: list[Any]) -> ir.Model:
    """A model of one call, its results in float32."""
    op = OpBuilder(opset=21)
    inputs = [op.input(f"i{i}", kind, shape) for i, (kind, shape) in enumerate(zip(kinds, shapes))]
    node = ir.Node(COMPOSITES, name, inputs, num_outputs=count)
    for i, value in enumerate(node.outputs):
        value.name = f"made_{i}"
    op.graph.append(node)
    model = op.model(**{f"y{i}": op.Cast(v, to=1) for i, v in enumerate(node.outputs)})
    model.opset_imports[COMPOSITES] = 1
    add_float8_function(model.functions, name, 21)
    return model


def run(model: ir.Model, feeds: list[Any], provider: str) -> list[Any]:
    session = onward.InferenceSession(model, providers=[f"{provider}ExecutionProvider"])
    found: list[Any] = session.run(None, {f"i{i}": array for i, array in enumerate(feeds)})
    return found


def test_kernels_compute_what_the_bodies_do() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 5, 32), (32, 16)))
    dy = (rng.normal(size=(3, 5, 16)) * 1e-4).astype(np.float32)
    x[0, 0, 0] = 100.0  # cut off
    scales = np.float32([0.01, 0.01, 1e-8])
    forward = call_model("Float8Linear", 4, ["float32"] * 3, [x.shape, w.shape, (3,)])
    by_ort, by_torch = (run(forward, [x, w, scales], each) for each in ("CPU", "Torch"))
    for one, other in zip(by_ort, by_torch):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    _, qx, qw, largest = by_ort
    assert qx[0, 0, 0] == 448.0
    exact = (w / scales[1]).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(qw, exact)
    np.testing.assert_array_equal(largest, [np.abs(x).max(), np.abs(w).max()])
    e4m3 = ml_dtypes.float8_e4m3fn
    feeds = [dy, qx.astype(e4m3), qw.astype(e4m3), scales]
    kinds = ["float32", e4m3, e4m3, "float32"]
    backward = call_model("Float8LinearGrad", 3, kinds, [each.shape for each in feeds])
    for one, other in zip(*(run(backward, feeds, each) for each in ("CPU", "Torch"))):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("provider", ["CPU", "Torch"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_stay_so(bad: float, provider: str) -> None:
    x, w = np.ones((16, 16), np.float32), np.ones((16, 16), np.float32)
    x[2, 3] = bad
    model = call_model("Float8Linear", 4, ["float32"] * 3, [x.shape, w.shape, (3,)])
    y = run(model, [x, w, np.float32([1, 1, 1])], provider)[0]
    assert np.isnan(y[2]).all() and np.isfinite(y[:2]).all()


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [0, 5])
def test_losses_are_near_those_of_bfloat16(time: int) -> None:
    feeds = batches(80, time=time)
    model = network(time=time)
    low, eight = (opened(each, model=model) for each in (BF16, FP8))
    assert (calls(low), calls(eight)) == (0, 2 if time else 3)
    ours, theirs = trained(eight, feeds), trained(low, feeds)
    assert not np.array_equal(ours, theirs) and theirs[-1] < 0.8 * theirs[0]
    assert np.abs(ours - theirs).mean() < 0.03 * theirs.mean()
    assert ours[-10:].mean() == pytest.approx(theirs[-10:].mean(), rel=0.05)


def test_gradients_are_near_those_of_bfloat16() -> None:
    found = []
    for precision in (BF16, FP8):
        session = opened(precision)
        for feeds in batches(2):  # the second with scales of the first
            session.clear_gradients()
            session.run_forward(feeds)
            session.run_backward()
        found.append(session.get_gradients())
    for name, one in found[0].items():
        other = found[1][name]
        cosine = np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other)
        assert cosine > 0.99, name


@pytest.mark.integration
def test_inductor_trains_alike(caplog: pytest.LogCaptureFixture) -> None:
    feeds = batches(30)
    one, other = (trained(opened(FP8, each), feeds) for each in (TORCH, INDUCTOR))
    assert np.abs(one - other).mean() < 0.02 * one.mean()
    assert "Inductor cannot compile" not in caplog.text


def test_a_step_remembers_the_largest_values() -> None:
    session, feeds = opened(), batches(STEPS + 2)
    first = np.array(history_of(session))
    assert first.shape == (3, 3, STEPS) and not first[:, :, :-1].any() and first[:, :, -1].all()
    for i, each in enumerate(feeds):
        session.step(each)
        history = history_of(session)
        largest = np.abs(each["x"]).max()
        assert history[0, 0, 0] == pytest.approx(largest, rel=2.0**-8)
        assert np.count_nonzero(history[0, 0]) == min(i + 1, STEPS)
    assert (history[:, 2] > 0).all() and (history[:, 2] < 1).all()


def test_a_step_that_is_skipped_leaves_the_history() -> None:
    session, feeds = opened(), batches(3)
    session.step(feeds[0])
    before = np.array(history_of(session))
    session.step({**feeds[1], "x": feeds[1]["x"] * np.float32(np.inf)})
    assert session.skipped_steps == 1
    np.testing.assert_array_equal(history_of(session), before)
    assert np.isfinite(session.step(feeds[2])["loss"])


def test_a_resumed_run_repeats_bit_for_bit(tmp_path: Path) -> None:
    one, other = opened(), opened()
    feeds = batches(8)
    trained(one, feeds[:4])
    one.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert trained(one, feeds[4:]).tobytes() == trained(other, feeds[4:]).tobytes()


def test_the_trained_model_is_exported_without_the_history(tmp_path: Path) -> None:
    session, feeds = opened(), batches(4)
    trained(session, feeds)
    assert not session.statistics
    session.export(tmp_path / "trained.onnx")
    [scores] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": feeds[0]["x"]})
    np.testing.assert_allclose(scores, session.predict({"x": feeds[0]["x"]})["scores"], atol=1e-5)
    low = opened(BF16)
    low.set_parameters(dict(session.parameters))
    evaluated = [float(each.evaluate(feeds[0])["loss"]) for each in (session, low)]
    assert evaluated[0] == evaluated[1]  # an evaluation is in 16 bits


@pytest.mark.parametrize(
    "options",
    [{"accumulate": 2, "clip_norm": 0.5}, {"memory": Memory(level=2)}, {"frozen": ["w2"]}],
    ids=str,
)
def test_other_options_go_with_it(options: dict[str, Any]) -> None:
    session = opened(**options)
    seen = trained(session, batches(20))
    assert np.isfinite(seen).all() and seen[-1] < seen[0]
    assert calls(session) >= (2 if "frozen" in options else 3)


@pytest.mark.parametrize("classes", [5, WIDTH])
def test_the_last_product_stays_in_16_bits_whatever_its_size(classes: int) -> None:
    op = OpBuilder(18)
    h = op.MatMul(op.input("x", "float32", ("batch", WIDTH)), weight(op, "w", WIDTH, WIDTH))
    scores = op.MatMul(op.Tanh(h), weight(op, "last", WIDTH, classes))
    session = opened(model=op.model(scores=scores))
    assert calls(session) == 1 and history_of(session).shape[0] == 1


# -- refusals ----------------------------------------------------------------------------------


def test_models_without_such_products_are_refused() -> None:
    with pytest.raises(OptionError, match=r"precision: no product for fp8: it takes .*\nleave"):
        opened(model=network(24))


def test_other_names_are_refused() -> None:
    with pytest.raises(OptionError, match=r"Precision\.products must be 'fp8', not 'int8'"):
        Precision(products="int8")


@pytest.mark.parametrize(
    ("capability", "words"), [(None, "no CUDA"), ((8, 0), r"capability 8\.0")], ids=str
)
def test_devices_without_8_bit_products_are_refused(capability: Any, words: str) -> None:
    law = rf"fp8 products need torch on a GPU of capability 8\.9 or more; this has {words}\nleave"
    with pytest.raises(ProviderError, match=law):
        check_float8(capability)
    check_float8((8, 9))
    check_float8((9, 0))


@pytest.mark.parametrize("provider", [TORCH, "CPUExecutionProvider"], ids=["torch", "onnxruntime"])
def test_a_processor_is_refused(provider: Any) -> None:
    with pytest.raises(ProviderError, match="fp8 products need torch on a GPU"):
        opened(Precision(products="fp8"), provider)


@pytest.mark.gpu
def test_a_gpu_multiplies_in_8_bits(caplog: pytest.LogCaptureFixture) -> None:
    feeds = batches(80)
    ours = trained(opened(Precision(products="fp8"), CUDA), feeds)
    theirs = trained(opened(Precision(), CUDA), feeds)
    emulated = trained(opened(FP8), feeds)
    assert ours[:5] == pytest.approx(emulated[:5], rel=0.02)
    assert ours[-10:].mean() == pytest.approx(theirs[-10:].mean(), rel=0.05)
    # Such as that it cannot be compiled; torch's own loggers tell what they trace.
    assert not [record for record in caplog.records if record.name.startswith("onward")]


@pytest.mark.parametrize(
    ("provider", "layers", "width", "heads", "length"),
    [
        pytest.param(INDUCTOR, 2, 32, 4, 8, marks=pytest.mark.integration, id="cpu"),
        pytest.param(CUDA, 3, 768, 12, 256, marks=pytest.mark.gpu, id="cuda"),
    ],
)
def test_compiled_attention_trains_in_8_bits(
    provider: Any, layers: int, width: int, heads: int, length: int
) -> None:
    """On an H200, gradients of keys' and values' weights were not finite: no step was taken."""
    sizes = {"layers": layers, "width": width, "heads": heads, "vocabulary": 500}
    model = new_model("bert", dropout=0.0, **sizes)
    rng = np.random.default_rng(0)
    feeds: Any = {
        "tokens": rng.integers(500, size=(8, length)),
        "token_types": np.zeros((8, length), np.int64),
        "mask": np.ones((8, length), np.int64),
        "labels": rng.integers(2, size=8),
    }
    emulated = provider is INDUCTOR
    ours, theirs = (
        opened(Precision(products=products, emulated=emulated), provider, model, rate=1e-4)
        for products in ("fp8", None)
    )
    found, wanted = (trained(session, [feeds] * 6) for session in (ours, theirs))
    assert ours.skipped_steps == 0
    assert found == pytest.approx(wanted, rel=0.05)


@pytest.mark.integration
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exported_attention_trains_near_bfloat16(dynamo: bool) -> None:
    module, batch = make("attention")
    model = export(module, batch["x"], dynamo=dynamo)
    eight = open_session(model, FP8)
    assert calls(eight) >= 4  # q, k, v and the output; the matrix that is shared
    ours, theirs = (session_losses(model, batch, each) for each in (FP8, BF16))
    assert np.abs(ours - theirs).mean() < 0.05 * theirs.mean() and ours[-1] < 0.8 * ours[0]
