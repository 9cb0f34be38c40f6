"""Batches without padding: rows stay whole, and models that read the padding are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import Calibration, Tune, tune_rounding
from onward.compress.distillation.trimmed_batches import training_batches, trimmed_batches
from onward.compress.quality import Judge
from onward.sessions.inference import InferenceSession
from tests.compress.learned_rounding.small_models import random, rounded

LENGTHS = np.random.default_rng(0).integers(2, 9, size=100)
IDS = np.random.default_rng(1).integers(1, 20, size=(100, 12))
MASK = (np.arange(12) < LENGTHS[:, None]).astype(np.int64)
ROWS = {"ids": IDS * MASK, "mask": MASK}


def encoder(*, tokens: int | str = "tokens", reads_padding: bool = False) -> ir.Model:
    """Embeddings plus the mean of those that the mask keeps, and a layer."""
    op = onward.OpBuilder()
    ids = op.input("ids", "int64", ("batch", tokens))
    mask = op.input("mask", "int64", ("batch", tokens))
    x = op.Gather(op.initializer("table", random(20, 16, seed=1)), ids)
    kept = op.Unsqueeze(op.Cast(mask, to=ir.DataType.FLOAT), np.array([-1]))
    count = op.ReduceSum(kept, np.array([1]), keepdims=1)
    summed = op.ReduceSum(x if reads_padding else op.Mul(x, kept), np.array([1]), keepdims=1)
    h = op.Add(x, op.Div(summed, count))
    w = op.initializer("w0", random(16, 16, seed=2) / 4)
    return op.model(y=op.MatMul(op.Relu(op.MatMul(h, w)), op.initializer("w1", random(16, 8))))


def read(model: ir.Model, rows: Any = None, **settings: Any) -> Calibration:
    return Calibration(rows or ROWS, InferenceSession(model).get_inputs(), **settings)


def test_every_row_comes_once_without_the_padding_of_its_batch() -> None:
    model = encoder()
    labels = np.arange(100)
    data = trimmed_batches(model, read(model, {**ROWS, "label": labels}, target="label"), rows=8)
    assert data is not None
    seen: list[int] = []
    full = 0
    for feeds, targets in data.labelled_batches():
        lengths = LENGTHS[targets]
        size = lengths.max()
        assert len(targets) <= 8 and feeds["ids"].shape == feeds["mask"].shape == (
            len(targets),
            size,
        )
        assert (feeds["ids"] == ROWS["ids"][targets, :size]).all()
        assert (feeds["mask"] == MASK[targets, :size]).all()
        full += len(targets) == 8 and lengths.min() == size
        seen += targets.tolist()
    assert sorted(seen) == labels.tolist()
    assert full == sum(count // 8 for count in np.bincount(LENGTHS))


def test_labels_of_positions_are_cut_too() -> None:
    model = encoder()
    rows = {**ROWS, "label": IDS}
    data = trimmed_batches(model, read(model, rows, target="label"))
    assert data is not None
    for feeds, targets in data.labelled_batches():
        assert (feeds["ids"] == targets * feeds["mask"]).all()


def test_a_large_batch_of_one_length_is_divided() -> None:
    model = encoder()
    rows = {"ids": IDS[:70], "mask": (np.arange(12) < 5).astype(np.int64) * np.ones((70, 1), int)}
    data = trimmed_batches(model, read(model, rows, batch=70), rows=32)
    assert data is not None
    assert [feeds["ids"].shape for feeds in data.batches()] == [(32, 5), (32, 5), (6, 5)]


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        pytest.param(encoder(reads_padding=True), ROWS, id="padding counts"),
        pytest.param(encoder(tokens=12), ROWS, id="fixed length"),
        pytest.param(encoder(), {**ROWS, "mask": np.ones_like(MASK)}, id="no padding"),
        pytest.param(encoder(), {"ids": IDS, "mask": MASK[:, ::-1]}, id="padding in front"),
    ],
)
def test_other_data_is_only_joined(model: ir.Model, rows: dict[str, Any]) -> None:
    data = read(model, rows)
    assert trimmed_batches(model, data) is None
    shapes = [feeds["ids"].shape for feeds in training_batches(model, data).batches()]
    assert shapes == [(32, 12), (32, 12), (32, 12), (4, 12)]


def test_tuning_learns_from_rows_without_padding() -> None:
    model = encoder()
    quantized = rounded(model, bits=2)
    tuned = tune_rounding(model, quantized, read(model), Tune(steps=60))
    other = np.random.default_rng(7).integers(1, 20, size=(40, 6))
    unseen = read(model, {"ids": other, "mask": np.ones_like(other)})
    judge = Judge(model, unseen)
    assert judge.rate(tuned).error < 0.8 * judge.rate(quantized).error
