"""BatchNormalization over the rows of a batch, where a batch has one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from tests.runner.plan.planned_runs import plan_of, train

RNG = np.random.default_rng(0)


def normalized(shape: tuple[Any, ...]) -> ir.Model:
    """A linear layer of 3 classes after BatchNormalization of 4 channels."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", shape)
    tensors = [
        op.initializer(name, np.full(4, value, np.float32))
        for name, value in {"scale": 1, "shift": 0, "mean": 0, "var": 1}.items()
    ]
    h = op.BatchNormalization(x, *tensors)
    if len(shape) > 2:
        h = op.Flatten(op.GlobalAveragePool(h))
    w = op.initializer("w", RNG.normal(size=(4, 3)).astype(np.float32))
    return op.model(scores=op.MatMul(h, w))


def rows(count: int, *shape: int) -> dict[str, Any]:
    return {"x": RNG.normal(size=(count, *shape)).astype("f4"), "label": np.arange(count) % 3}


def said(plan: Any) -> dict[str, str]:
    return {each.what: f"{each.value} ({each.why})" for each in plan.choices}


@pytest.mark.parametrize("shape", [(1, 4), ("batch", 4), (1, 4, 1, 1)])
def test_a_batch_of_one_row_keeps_the_statistics(shape: tuple[Any, ...]) -> None:
    plan = plan_of(normalized(shape), rows(12, *shape[1:]), batch_size=1, validation_split=0)
    assert said(plan)["BatchNormalization"] == (
        "1 layer keeps its statistics (a batch of 1 row has none of its own)"
    )
    assert len(plan.adapted.frozen_batch_norms) == 1
    train(plan)


def test_pixels_of_one_row_have_statistics() -> None:
    plan = plan_of(normalized((1, 4, 2, 2)), rows(12, 4, 2, 2), validation_split=0)
    assert "BatchNormalization" not in said(plan) and not plan.adapted.frozen_batch_norms


@pytest.mark.parametrize("count, batches", [(13, 3), (12, 3), (14, 4)])
def test_a_last_batch_of_one_row_is_left_out(count: int, batches: int) -> None:
    plan = plan_of(normalized(("n", 4)), rows(count, 4), batch_size=4, validation_split=0)
    assert len(plan.training) == batches
    assert ("left out" in said(plan)) == (count == 13)
    plan = plan_of(
        normalized(("n", 4)), rows(13, 4), batch_size=4, validation_split=0, freeze_batch_norm=True
    )
    assert len(plan.training) == 4  # the layer reads no batch
