"""Losses in 16 bits: as near to those of float32 as torch.autocast's, for several exporters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onward
from onward.losses import CrossEntropy
from onward.optimizers import SGD, AdamW
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.program import Program
from tests.programs.precision.precision_models import (
    BF16,
    FP16,
    INPUTS,
    RATE,
    assert_casts_are_few,
    export,
    make,
    open_session,
    session_losses,
    torch_losses,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # autocast without bf16 hardware
]

SEEDS = 4  # distances are rounding errors: one run says little


def train_graph(session: Any) -> Any:
    program = session._program.neutral
    assert isinstance(program, Program)
    return program.train.graph


def assert_near_autocast(name: str, **exporter: bool) -> None:
    distances = np.array([distances_to_float32(name, seed, **exporter) for seed in range(SEEDS)])
    ours, theirs = np.exp(np.log(distances).mean(0))
    assert ours <= 1.25 * theirs, distances


def distances_to_float32(name: str, seed: int, **exporter: bool) -> tuple[float, float]:
    """The mean distances of our losses in bfloat16 and of autocast's to those in float32."""
    module, batch = make(name, seed)
    model = export(module, batch["x"], **exporter)
    exact, theirs = (torch_losses(module, batch, autocast=on) for on in (False, True))
    ours = session_losses(model, batch, BF16)
    assert not np.array_equal(ours, exact) and ours[-1] < 0.8 * ours[0]
    return float(np.abs(ours - exact).mean()), float(np.abs(theirs - exact).mean())


@pytest.mark.integration
@pytest.mark.parametrize("name", INPUTS)
def test_bfloat16_is_as_near_to_float32_as_autocast(name: str) -> None:
    assert_near_autocast(name)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_bfloat16_is_as_near_with_the_dynamo_exporter(name: str, dynamic: bool) -> None:
    assert_near_autocast(name, dynamo=True, dynamic=dynamic)


@pytest.mark.integration
@pytest.mark.parametrize("name", INPUTS)
def test_float16_trains_with_a_dynamic_loss_scale(name: str) -> None:
    module, batch = make(name)
    model = export(module, batch["x"], dynamic=False)
    exact, session = torch_losses(module, batch, autocast=False), open_session(model, FP16)
    assert session._layout.settings.loss_scale == DynamicLossScale()
    ours = np.array([float(session.step(batch)["loss"]) for _ in range(len(exact))])
    assert np.abs(ours - exact).mean() < 5e-3
    assert session.steps == len(exact)


def is_of_head(node: Any) -> bool:
    """Whether a product reads the weight of the head, or computes its gradient."""
    return any("head.weight" in str(value.name) for value in (*node.inputs, *node.outputs))


@pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", INPUTS)
def test_every_weight_is_cast_once_and_stays_float32(name: str, precision: Any) -> None:
    module, batch = make(name)
    session = open_session(export(module, batch["x"]), precision)
    graph = train_graph(session)
    assert_casts_are_few(graph)
    weights = {value.name: value for value in graph.inputs if value.name in session.parameters}
    for value in weights.values():
        assert value.dtype.name == "FLOAT"
        casts = [node for node, _ in value.uses() if node.op_type == "Cast"]
        assert len(casts) <= 1
    products = [node for node in graph if node.op_type in ("MatMul", "Gemm", "Conv")]
    if name == "lstm":  # its own gradient is in float32, as the operator is
        products = [n for n in products if not str(n.outputs[0].name).startswith("gradient")]
    if name in ("cnn", "attention"):  # whose heads are a small part of the work
        products = [node for node in products if not is_of_head(node)]
    assert products
    assert {node.outputs[0].dtype.name for node in products} == {precision.kind.upper()}
    outputs = {value.name: value.dtype.name for value in graph.outputs}
    assert set(outputs.values()) <= {"FLOAT", "INT64"}
    session.step(batch)
    assert {array.dtype for array in session.parameters.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("name", INPUTS)
def test_onnxruntime_trains_in_emulated_float16(name: str) -> None:
    """The bodies of calls are inlined there, and every type is checked."""
    module, batch = make(name)
    model = export(module, batch["x"])
    exact = torch_losses(module, batch, autocast=False)[:5]
    stays = ["BatchNormalization"] if name == "cnn" else []
    session = open_session(model, replace(FP16, float32=stays), "cpu")
    ours = [float(session.step(batch)["loss"]) for _ in range(5)]
    assert ours == pytest.approx(list(exact), abs=2e-3)


def overflowing() -> tuple[Any, dict[str, Any]]:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", np.eye(4, dtype=np.float32))
    batch = {"x": np.eye(4, dtype=np.float32), "labels": np.arange(4)}
    return op.model(y=op.MatMul(x, w)), batch


def test_an_overflow_skips_the_update_and_the_scale_recovers() -> None:
    model, batch = overflowing()
    scale = DynamicLossScale(initial=2.0**24, interval=3)
    session = onward.TrainingSession(
        model, CrossEntropy(), SGD(lr=0.1), {"precision": FP16, "loss_scale": scale},
        providers=["torch"],
    )  # fmt: skip
    before = np.array(session.parameters["w"])
    session.step(batch)
    assert session.steps == 0
    np.testing.assert_array_equal(session.parameters["w"], before)
    losses = [float(session.step(batch)["loss"]) for _ in range(20)]
    assert session.steps > 3 and losses[-1] < losses[0]
    assert np.isfinite(session.parameters["w"]).all()


def test_evaluation_is_in_16_bits_and_prediction_is_not() -> None:
    module, batch = make("mlp")
    session = open_session(export(module, batch["x"]), BF16)
    program = session._program.neutral
    kinds = [
        {v.dtype.name for node in graph.graph for v in node.outputs if v.dtype is not None}
        for graph in (program.evaluate, program.predict)
    ]
    assert "BFLOAT16" in kinds[0] and "BFLOAT16" not in kinds[1]
    plain = open_session(export(module, batch["x"]), None)
    np.testing.assert_allclose(
        session.predict({"x": batch["x"]})["y"], plain.predict({"x": batch["x"]})["y"], rtol=1e-5
    )
    low, high = (float(each.evaluate(batch)["loss"]) for each in (session, plain))
    assert low != high and low == pytest.approx(high, rel=0.02)


def test_accumulated_and_clipped_gradients_are_those_of_one_batch() -> None:
    module, batch = make("mlp")
    model = export(module, batch["x"])
    sessions = [
        onward.TrainingSession(
            model, CrossEntropy(), SGD(lr=0.1),
            {"precision": BF16, "accumulate": n, "clip_norm": 0.5}, providers=["torch"],
        )
        for n in (1, 2)
    ]  # fmt: skip
    sessions[0].step(batch)
    for half in (slice(0, 8), slice(8, 16)):
        sessions[1].step({name: array[half] for name, array in batch.items()})
    for name, array in sessions[0].parameters.items():
        np.testing.assert_allclose(sessions[1].parameters[name], array, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "InductorExecutionProvider"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_gpu_trains_in_16_bits(name: str, precision: str, provider: str) -> None:
    module, batch = make(name)
    exact = torch_losses(module, batch, autocast=False)
    session = onward.TrainingSession(
        export(module, batch["x"]), CrossEntropy(), AdamW(lr=RATE, weight_decay=0.01),
        {"precision": precision, "unbiased_variance": True},
        providers=[(provider, {"device": "cuda"})],
    )  # fmt: skip
    ours = np.array([float(session.step(batch)["loss"]) for _ in range(len(exact))])
    assert np.abs(ours - exact).mean() < 0.02
