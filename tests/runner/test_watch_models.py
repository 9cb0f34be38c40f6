"""Fine-tuning and evaluating the models of a watch, with a stored preprocessing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onward import OpBuilder
from onward.errors import DataError
from onward.graph.files import save
from onward.runner.watch import watch
from onward.runner.watch_models import evaluate_on, fine_tune_with, watch_settings


class PointFeeds:
    target, output = SimpleNamespace(feed="labels"), "scores"

    def feeds(self, columns: Any) -> dict[str, Any]:
        return {"x": columns["point"].astype(np.float32), "labels": columns["kind"]}


def save_model(path: Path, weight: float) -> Path:
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 2))
    w = op.initializer("w", (np.eye(2) * weight).astype(np.float32))
    save(op.model(scores=op.MatMul(x, w)), path)
    return path


def test_a_better_model_is_trained_evaluated_and_served(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(300, 2))
    held_out = {"point": points, "kind": points.argmax(axis=1)}
    model, incoming = save_model(tmp_path / "model.onnx", weight=-1), tmp_path / "incoming"
    incoming.mkdir()
    np.savez(incoming / "new.npz", **held_out)
    calls: list[Any] = []

    def train(model: str, data: Any, **settings: Any) -> Any:
        calls.append((Path(data).name, settings))
        return SimpleNamespace(model=save_model(tmp_path / "candidate.onnx", weight=1))

    evaluate = evaluate_on(held_out, "accuracy", lambda _: PointFeeds())
    [decision] = watch(
        model,
        incoming,
        train=fine_tune_with(train, epochs=2),
        evaluate=evaluate,
        options=watch_settings("accuracy", min_improvement=0.01),
        once=True,
        sleep=lambda _: None,
    )
    assert calls == [("new.npz", {"epochs": 2})]
    assert (decision.decision, decision.current, decision.candidate) == ("promoted", 0.0, 1.0)
    assert evaluate(model) == 1.0


def test_a_model_without_preprocessing_is_refused(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx", weight=1)
    evaluate = evaluate_on({"point": np.zeros((1, 2))}, "accuracy", lambda _: None)
    with pytest.raises(DataError, match=r"how its inputs are made .*\ngive a model that"):
        evaluate(model)
