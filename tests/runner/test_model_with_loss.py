"""Training of a model whose output is its loss, and whose labels are an input."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import onward


def test_model_with_its_own_loss_is_trained_and_evaluated(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    x, y = op.input("x", "float32", ("n", 3)), op.input("labels", "float32", ("n", 1))
    scores = op.MatMul(x, op.initializer("w", np.zeros((3, 1), np.float32)))
    errors = op.Sub(scores, y)
    model = op.model(scores=scores, loss=op.ReduceMean(op.Mul(errors, errors), keepdims=0))
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    data = {"x": rows, "labels": rows.sum(1, keepdims=True)}
    run = onward.train(
        model, data, loss="output", epochs=8, batch_size=6, learning_rate=0.1,
        runs=str(tmp_path), export="last",
    )  # fmt: skip
    assert list(run.metrics) == ["val_loss"] and run.metrics["val_loss"] < 0.5
    session = onward.InferenceSession(run.model)
    scores, _ = session.run(None, data)
    np.testing.assert_allclose(scores, data["labels"], atol=1.5)
