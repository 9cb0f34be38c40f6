"""Tensors that a step replaces by values of the graph, in addition to BatchNormalization's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession


def model() -> ir.Model:
    """y = x w - mean; the mean of all x so far and their count go along."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    w = op.initializer("w", np.ones((3, 2), np.float32))
    mean = op.initializer("mean", np.zeros((2,), np.float32))
    count = op.initializer("count", np.array(0, np.int64))
    y = op.MatMul(x, w)
    moved = op.Add(op.Mul(mean, 0.5), op.Mul(op.ReduceMean(y, [0], keepdims=0), 0.5))
    counted = op.Add(count, op.Squeeze(op.Shape(x, start=0, end=1), [0]))
    return op.model(y=op.Sub(y, mean), moved=moved, counted=counted)


def session(state: dict[str, str], **options: Any) -> TrainingSession:
    return TrainingSession(model(), MSE(output="y"), SGD(lr=0.0), {"state": state, **options})


def test_state_is_updated_and_exported(tmp_path: Path) -> None:
    one = session({"mean": "moved", "count": "counted"})
    assert list(one.parameters) == ["w"] and set(one.statistics) == {"mean", "count"}
    feeds = {"x": np.ones((4, 3), np.float32), "target": np.zeros((4, 2), np.float32)}
    for _ in range(3):
        one.step(feeds)
    np.testing.assert_allclose(one.statistics["mean"], [2.625, 2.625])
    assert one.statistics["count"] == 12
    one.evaluate(feeds)
    assert one.statistics["count"] == 12
    one.export(tmp_path / "m.onnx", ["y"])
    [y] = onward.InferenceSession(tmp_path / "m.onnx").run(None, {"x": feeds["x"]})
    np.testing.assert_allclose(y, 3 - 2.625 + np.zeros((4, 2)))
    one.save(tmp_path / "c")
    two = session({"mean": "moved", "count": "counted"})
    two.load(tmp_path / "c")
    assert two.statistics["count"] == 12


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"nobody": "moved"}, "state: 'nobody' is not an initializer of the model"),
        ({"mean": "nothing"}, "no value 'nothing' for 'mean' to become\nthere are '"),
        ({"mean": "counted"}, "'mean' is .* and cannot become 'counted', which is"),
    ],
)
def test_state_that_does_not_fit_is_refused(state: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        session(state)
