"""Fused step: bit for bit the same as separate runs, and no change if gradients are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.losses import CrossEntropy, Output
from onward.optimizers import EMA, LAMB, SGD, Adam, AdamW, Group, Muon
from onward.providers.ort.training.fused_step import fuse_step
from onward.providers.ort.training.lowered import UPDATED
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import compile_training
from tests.sessions.training.small import batches, mlp

GROUPS = [Group(parameters="b*", optimizer=LAMB(lr=0.01)), Group(parameters="w1", lr=0.5)]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (AdamW(lr=0.02), {}),
    "SGD": (SGD(lr=0.1), {}),
    "momentum": (SGD(lr=0.1, momentum=0.9, nesterov=True), {}),
    "Muon": (AdamW(lr=0.02), {"groups": [Group(parameters="w*", optimizer=Muon(lr=0.02))]}),
    "groups and a norm": (AdamW(lr=0.02), {"groups": GROUPS, "clip_norm": 1.0}),
    "a loss scale": (AdamW(lr=0.02), {"loss_scale": 8.0, "clip_norm": 0.1}),
    "values and an average": (Adam(lr=0.02), {"clip_value": 0.01, "average": EMA(decay=0.9)}),
}


def apart(*given: Any) -> TrainingSession:
    """A session that does not try to have all in one run."""
    made = TrainingSession(*given)
    made._engine._is_fused = False
    return made


def equal(one: TrainingSession, two: TrainingSession) -> None:
    tensors, others = one.checkpoint()[0], two.checkpoint()[0]
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_fused_step_equals_gradients_then_update(case: str) -> None:
    optimizer, options = CASES[case]
    given = (mlp(dropout=0.2), CrossEntropy(), optimizer, options)
    one, two = TrainingSession(*given), apart(*given)
    for feeds in batches(6):
        ours, theirs = one.step(feeds), two.step(feeds)
        for name, result in ours.items():
            np.testing.assert_array_equal(result, theirs[name])
        assert one.gradient_norm == two.gradient_norm
    assert list(one._engine._feeds) == ["step"] and one.steps == 6
    equal(one, two)


def test_saved_program_keeps_its_blocks(tmp_path: Path) -> None:
    program = compile_training(mlp(), CrossEntropy(), AdamW(lr=0.02))
    one, two = TrainingSession(program), TrainingSession(program.save(tmp_path / "program"))
    for feeds in batches(3):
        one.step(feeds)
        two.step(feeds)
    assert list(two._engine._feeds) == ["step"]
    equal(one, two)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_gradients_change_nothing(bad: float) -> None:
    one = TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.02), {"average": EMA(decay=0.9)})
    good, spoiled = batches(2)
    one.step(good)
    before = {name: tensor.copy() for name, tensor in one.checkpoint()[0].items()}
    spoiled["x"][0, 0] = bad
    one.step(spoiled)
    assert (one.steps, one.skipped_steps) == (1, 1)
    for name, tensor in one.checkpoint()[0].items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)
    one.step(good)
    assert one.steps == 2 and np.isfinite(one.gradient_norm)


def test_finite_gradients_whose_sum_overflows_are_used() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", np.zeros(8, np.float32))
    loss = op.ReduceSum(op.Mul(w, op.input("x", "float32", (8,))), keepdims=0)
    one = TrainingSession(op.model(cost=loss), Output("cost"), SGD(lr=1e-37))
    one.step({"x": np.array([3e38, 3e38, -3e38, -3e38, 0, 0, 0, 0], np.float32)})
    assert (one.steps, one.skipped_steps) == (1, 0)
    np.testing.assert_allclose(one.parameters["w"], [-30, -30, 30, 30, 0, 0, 0, 0], rtol=1e-5)


def test_outputs_read_the_parameters_before_the_update() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", np.ones((4, 4), np.float32))
    h = op.MatMul(op.input("x", "float32", ("n", 4)), w)
    loss = op.ReduceMean(op.Mul(h, h), keepdims=0)
    total = op.ReduceSum(op.Exp(w), keepdims=0)  # of no use for the loss or its gradients
    same = op.Reshape(w, [16])
    model = op.model(cost=loss, total=total, same=same)
    one = TrainingSession(model, Output("cost"), SGD(lr=0.1), {"trainable": ["w"]})
    rng = np.random.default_rng(0)
    for _ in range(20):
        old = one.parameters["w"].copy()
        found = one.step({"x": rng.normal(size=(5, 4)).astype(np.float32)})
        np.testing.assert_array_equal(found["same"], old.ravel())
        np.testing.assert_allclose(found["total"], np.exp(old).sum(), rtol=1e-6)
    assert list(one._engine._feeds) == ["step"]


def test_updates_run_after_every_output() -> None:
    step = compile_training(mlp(), CrossEntropy(), AdamW()).lowered.step
    assert step is not None
    graph = ir.from_proto(onnx.load_from_string(step)).graph
    [chosen] = [node for node in graph if node.op_type == "If"]
    keep = chosen.attributes["else_branch"].as_graph()
    read = {value.name for node in keep for value in node.inputs if value is not None}
    results = {v.name for v in graph.outputs if v.producer() is not chosen} - {UPDATED}
    assert results <= read and len(results) == 7


def test_accumulated_gradients_and_fused_steps_alternate() -> None:
    given = (mlp(), CrossEntropy(), AdamW(lr=0.02))
    one, two = TrainingSession(*given), apart(*given)
    first, second, third = batches(3)
    for session in (one, two):
        session.step(first)
        session.run_forward(second)
        session.run_backward()
        session.step(third)  # a second micro-batch: both together update
        session.step(first)
    assert one.steps == two.steps == 3
    equal(one, two)


def test_accumulation_or_no_skipping_is_not_fused() -> None:
    for options in ({"accumulate": 2}, {"skip_nonfinite": False}):
        assert compile_training(mlp(), CrossEntropy(), AdamW(), options).lowered.step is None
    program = compile_training(mlp(), CrossEntropy(), AdamW()).lowered
    assert fuse_step(program.train, program.updates, [True]) == program.step
