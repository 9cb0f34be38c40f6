"""Both graphs of a step as one: the same numbers as apart, with subgraphs, with several updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from onward.losses import MSE, CrossEntropy
from onward.optimizers import LAMB, SGD, AdamW, Group
from onward.sessions.training.opening import Opening
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp

LOOP = """
    <ir_version: 10, opset_import: ["" : 21]>
    looped (float[n, 3] x) => (float[n, 3] y, string words)
    <float[3, 3] w = {0.5, 0, 0, 0, 0.5, 0, 0, 0, 0.5}, int64 trips = {3}, bool yes = {1}> {
        y = Loop(trips, yes, x) <body = turn (int64 i, bool go, float[n, 3] h) =>
            (bool going, float[n, 3] next) {
                going = Identity(go)
                product = MatMul(h, w)
                next = Tanh(product)
        }>
        words = Constant<value_string = "seen">()
    }
"""


def apart(monkeypatch: pytest.MonkeyPatch, *given: Any) -> TrainingSession:
    """A session that opens each graph for itself."""
    with monkeypatch.context() as patched:
        patched.setattr(Opening, "branches", lambda _: None)
        made = TrainingSession(*given)
        made._engine("train")
    assert made._updates._joined is None
    return made


def test_two_branches_compute_what_two_graphs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [Group(parameters="b*", optimizer=LAMB(lr=0.01)), Group(parameters="w1", lr=0.5)]
    given = (
        mlp(dropout=0.2),
        CrossEntropy(),
        AdamW(lr=0.02),
        {"groups": groups, "clip_norm": 1.0, "accumulate": 2},
    )
    one, two = TrainingSession(*given), apart(monkeypatch, *given)
    for feeds in batches(6):
        ours, theirs = one.step(feeds), two.step(feeds)
        for name, result in ours.items():
            np.testing.assert_array_equal(result, theirs[name])
    assert one._updates._joined is not None
    tensors, others = one.checkpoint()[0], two.checkpoint()[0]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], err_msg=name)


def test_loops_that_capture_weights_and_outputs_of_text_go_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = (
        onnx.parser.parse_model(LOOP),
        MSE(),
        SGD(lr=0.1),
        {"trainable": ["w"], "accumulate": 2},
    )
    one, two = TrainingSession(*given), apart(monkeypatch, *given)
    rng = np.random.default_rng(0)
    for _ in range(6):
        feeds = {name: rng.normal(size=(4, 3)).astype(np.float32) for name in ("x", "target")}
        ours, theirs = one.step(feeds), two.step(feeds)
        assert ours["loss"] == theirs["loss"] and ours["words"] == "seen"
    np.testing.assert_array_equal(one.parameters["w"], two.parameters["w"])
    assert one._updates._joined is not None


def test_steps_and_the_same_apart_take_turns() -> None:
    one, two = (TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.02)) for _ in range(2))
    for i, feeds in enumerate(batches(6)):
        two.step(feeds)
        if i % 2:
            one.step(feeds)
            continue
        one.run_forward(feeds)
        one.run_backward()
        one.update_weights()
    for name, tensor in one.parameters.items():
        np.testing.assert_allclose(tensor, two.parameters[name], atol=1e-6)
