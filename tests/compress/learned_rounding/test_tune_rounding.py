"""Learned rounding: it is better than rounding, repeatable, and continues after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import Tune, tune_rounding
from onward.compress.learned_rounding.tune_rounding import learn_rounding
from onward.errors import DataError, OptionError
from onward.losses import MSE
from tests.compress.learned_rounding.small_models import (
    X,
    calibration,
    error,
    mlp,
    random,
    rounded,
    run,
    tensors,
)

ORIGINAL = mlp()


@pytest.mark.parametrize(("bits", "block", "share"), [(2, 0, 0.75), (2, 16, 0.9), (4, 0, 0.9)])
def test_learned_rounding_is_nearer_to_the_float_model(bits: int, block: int, share: float) -> None:
    quantized = rounded(ORIGINAL, bits, block)
    tuned = tune_rounding(ORIGINAL, quantized, calibration(ORIGINAL), Tune(steps=60))
    assert error(ORIGINAL, tuned) < share * error(ORIGINAL, quantized)


@pytest.mark.parametrize(
    ("limit", "rows"),
    [(8, "on rows that were not learned from"), (1, "on the rows that were learned from")],
)
def test_note_says_which_rows_the_gain_was_measured_on(limit: int, rows: str) -> None:
    data = calibration(ORIGINAL, limit=limit)
    learned = learn_rounding(ORIGINAL, rounded(ORIGINAL), data, Tune(steps=10))
    assert learned.helped and rows in learned.note


def test_only_integers_and_scales_change() -> None:
    quantized = rounded(ORIGINAL)
    before = tensors(quantized)
    tuned = tune_rounding(ORIGINAL, quantized, calibration(ORIGINAL), Tune(steps=10))
    assert tensors(quantized) == before
    assert [n.op_type for n in tuned.graph] == [n.op_type for n in quantized.graph]
    changed = {name for name, data in tensors(tuned).items() if data != before[name]}
    assert changed and all(".int2" in name or ".scale" in name for name in changed)
    kinds = {name: v.dtype for name, v in quantized.graph.initializers.items()}
    assert {name: v.const_value.dtype for name, v in tuned.graph.initializers.items()} == kinds


def test_the_same_seed_gives_the_same_bytes() -> None:
    quantized, data = rounded(ORIGINAL), calibration(ORIGINAL)
    first, second = (
        tensors(tune_rounding(ORIGINAL, quantized, data, Tune(steps=15, seed=3))) for _ in range(2)
    )
    assert first == second


def test_training_that_hurts_is_not_kept() -> None:
    quantized = rounded(ORIGINAL, 4)
    wild = Tune(steps=5, learning_rate=100.0, scale_rate=50.0, layers=False)
    tuned = tune_rounding(ORIGINAL, quantized, calibration(ORIGINAL), wild)
    assert tensors(tuned) == tensors(quantized)


def test_an_interrupted_run_continues_to_the_same_result(tmp_path: Path) -> None:
    quantized, data = rounded(ORIGINAL), calibration(ORIGINAL)
    whole = tune_rounding(ORIGINAL, quantized, data, Tune(steps=12, layers=False))

    class Clock:
        reads = 0

        def __call__(self) -> float:
            self.reads += 1
            if self.reads == 10:
                raise KeyboardInterrupt
            return 0.0

    tune = Tune(steps=12, folder=tmp_path, layers=False)
    with pytest.raises(KeyboardInterrupt):
        tune_rounding(ORIGINAL, quantized, data, tune, clock=Clock())
    assert list(tmp_path.iterdir())
    resumed = tune_rounding(ORIGINAL, quantized, data, tune)
    assert tensors(resumed) == tensors(whole)
    assert not list(tmp_path.iterdir())


def test_labels_and_a_loss_make_it_quantization_aware_training() -> None:
    quantized, target = rounded(ORIGINAL), np.tanh(X[:, :5])
    batches = [({"x": X[i : i + 16]}, target[i : i + 16]) for i in range(0, len(X), 16)]
    tune = Tune(steps=80, loss=MSE(), layers=False)
    tuned = tune_rounding(ORIGINAL, quantized, calibration(ORIGINAL, batches), tune)
    before, after = (float(((run(m, X) - target) ** 2).mean()) for m in (quantized, tuned))
    assert after < 0.7 * before


def test_a_loss_needs_targets() -> None:
    with pytest.raises(
        DataError, match="the loss needs targets, and the data has none\ngive the name"
    ):
        tune_rounding(ORIGINAL, rounded(ORIGINAL), calibration(ORIGINAL), Tune(loss=MSE()))


def test_a_float_model_has_nothing_to_tune() -> None:
    with pytest.raises(OptionError, match=r"no quantized weights to tune.*\nquantize it first"):
        tune_rounding(ORIGINAL, ORIGINAL, calibration(ORIGINAL), Tune(steps=1))


def test_one_batch_is_enough() -> None:
    quantized = rounded(ORIGINAL)
    data = calibration(ORIGINAL, {"x": X[:4]})
    tuned = tune_rounding(ORIGINAL, quantized, data, Tune(steps=5))
    assert np.isfinite(run(tuned, X)).all()


def fixed_batch() -> ir.Model:
    """A model of opset 8 that takes one image, and flattens it with a constant shape."""
    op = onward.OpBuilder(opset=8)
    x = op.input("x", "float32", (1, 1, 8, 8))
    conv = op.Conv(x, op.initializer("k", random(4, 1, 3, 3, seed=1)), pads=[1, 1, 1, 1])
    flat = op.Reshape(op.Relu(conv), op.initializer("shape", np.array([1, 256])))
    return op.model(y=op.MatMul(flat, op.initializer("w", random(256, 4, seed=2) / 16)))


@pytest.mark.integration
def test_a_model_of_one_row_learns_from_larger_batches() -> None:
    model = fixed_batch()
    data = {"x": random(96, 1, 8, 8, seed=7)}
    quantized = rounded(model)
    shapes: list[Any] = []
    tuned = tune_rounding(model, quantized, calibration(model, data), Tune(steps=40))
    one = random(1, 1, 8, 8, seed=8)
    shapes += [run(each, one).shape for each in (quantized, tuned)]
    assert shapes == [(1, 4), (1, 4)]
    images = random(32, 1, 8, 8, seed=9)
    expected, before, after = (
        np.concatenate([run(m, image[None]) for image in images]) for m in (model, quantized, tuned)
    )
    assert ((after - expected) ** 2).mean() < 0.7 * ((before - expected) ** 2).mean()
