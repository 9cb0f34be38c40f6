"""quantize with tune=: what is learned is in the report and the file, also with more bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.compress import Tune, quantize
from onward.compress.learned_rounding import tune_rounding as tuning
from onward.compress.learned_rounding.carry_over import carry_over
from onward.compress.learned_rounding.quantized_weights import find_weights, replace_tensor
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.errors import FeedError, NotFinite, OptionError
from tests.compress.learned_rounding.small_models import (
    X,
    calibration,
    mlp,
    random,
    rounded,
    tensors,
)


def network() -> ir.Model:
    """24 -> 64 -> 64 -> 8."""
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", 24))
    sizes = (24, 64, 64, 8)
    for place in range(3):
        w = random(sizes[place], sizes[place + 1], seed=place) / np.float32(sizes[place] ** 0.5)
        h = op.MatMul(op.Relu(h) if place else h, op.initializer(f"w{place}", w))
    return op.model(y=h)


MODEL = network()
ROWS, MORE = {"x": X[:64]}, {"x": random(512, 24, seed=6)}


def run_small(tune: Any, **settings: Any) -> Any:
    given: dict[str, Any] = {"to": "int2", "drop": 0.9, "memory": False} | settings
    return quantize(MODEL, ROWS, tune=tune, **given)


@pytest.mark.integration
def test_learned_weights_are_in_the_file(tmp_path: Path) -> None:
    reports = [run_small(None), run_small(Tune(steps=80, data=MORE, learning_rate=0.02))]
    errors = []
    for number, report in enumerate(reports):
        path = tmp_path / f"{number}.onnx"
        report.save(path, force=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        x = random(64, 24, seed=99)
        y, expected = (
            session.run(None, {"x": x})[0],
            onward.InferenceSession(MODEL).run(None, {"x": x}),
        )
        errors.append(np.linalg.norm(y - expected[0]) / np.linalg.norm(expected[0]))
    assert errors[1] < 0.85 * errors[0]
    assert reports[1].details["learned_rounding"] and not reports[0].details["learned_rounding"]
    assert any(note.startswith("80 steps of tuning: error 0.") for note in reports[1].notes)


def test_wrong_data_to_tune_with_is_an_error_before_the_work() -> None:
    with pytest.raises(FeedError):
        run_small(Tune(data={"x": X[:, :3]}), progress=lambda *step: pytest.fail(str(step)))


def test_tune_is_for_integers() -> None:
    with pytest.raises(OptionError, match="tune learns how to round to integers, not to fp16"):
        run_small("1min", to="fp16")


def test_weights_that_keep_their_format_keep_what_was_learned() -> None:
    quantizer = WeightQuantizer(MODEL, calibration(MODEL, ROWS), bits=2)
    names = list(quantizer.plan)
    whole = quantizer.write(quantizer.plan)
    learned = tuning.tune_rounding(MODEL, whole, calibration(MODEL, MORE), Tune(steps=20))
    fewer = quantizer.write({name: quantizer.plan[name] for name in names[:-1]})
    carried = carry_over(learned, fewer)
    expected, before, after = tensors(learned), tensors(fewer), tensors(carried)
    kept = [name for name in before if ".int2" in name]
    assert len(kept) == len(names) - 1
    assert all(after[name] == expected[name] for name in kept)
    assert any(before[name] != after[name] for name in kept)


def test_other_formats_are_not_carried_over() -> None:
    two, four = (
        quantizer.write(quantizer.plan)
        for quantizer in (
            WeightQuantizer(MODEL, calibration(MODEL, ROWS), bits=bits) for bits in (2, 4)
        )
    )
    assert tensors(carry_over(two, four)) == tensors(four)


@pytest.mark.integration
def test_a_budget_that_tuning_misses_is_kept_with_more_bits() -> None:
    report = run_small(Tune(steps=20, data=MORE), drop=0.04)
    assert report.helped and report.after.quality.similarity >= 0.96
    assert {"int2", "int4"} == {form[:4] for form in report.details["formats"]}
    assert report.details["learned_rounding"]  # of the weight that stays in 2 bits


@pytest.mark.integration
def test_report_says_which_weights_lost_what_was_learned() -> None:
    wide, some, none = (
        run_small(Tune(steps=20, data=MORE), drop=drop) for drop in (0.9, 0.04, 0.0005)
    )
    lost = "weights have the rounding that was learned: to lose no more than"
    assert wide.details["learned_rounding"] and lost not in str(wide)
    assert f"1 of 2 {lost} 4.00% (drop)" in str(some) and some.details["learned_rounding"]
    assert f"0 of 2 {lost} 0.05% (drop)" in str(none) and not none.details["learned_rounding"]
    assert "weights of 2 bits are off" in str(wide)
    assert "weights of 2 bits are off" not in str(none)  # it has none


@pytest.mark.integration
def test_model_before_tuning_is_kept_if_only_it_is_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def learn_wrong_signs(original: Any, model: ir.Model, *_: Any, **__: Any) -> tuning.Learned:
        worse = model.clone()
        last = find_weights(worse)[-1].stored_scale
        replace_tensor(last, -last.const_value.numpy())  # type: ignore[union-attr]
        return tuning.Learned(worse, True, "it seemed better on other rows")

    monkeypatch.setattr(tuning, "learn_rounding", learn_wrong_signs)
    report = run_small(Tune(steps=1), drop=0.6)
    assert report.helped and not report.details["learned_rounding"]
    assert "the model before tuning is kept: on the data of the budget" in str(report)


@pytest.mark.integration
def test_steps_that_are_not_finite_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise NotFinite("the gradients of 20 steps in a row are not finite\ngive a lower rate")

    monkeypatch.setattr(tuning, "_train", fail)
    report = run_small(Tune(steps=20, layers=False))
    [note] = [note for note in report.notes if "not finite" in note]
    assert note.startswith("tuning ended early: the gradients of 20 steps in a row")
    assert not report.details["learned_rounding"]


def test_fitted_layers_are_kept_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    quantized, data = rounded(model), calibration(model)
    whole = tuning.tune_rounding(model, quantized, data, Tune(steps=6))
    train = tuning._train

    def interrupt(*given: Any) -> Any:
        raise KeyboardInterrupt

    tune = Tune(steps=6, folder=tmp_path / "new")
    monkeypatch.setattr(tuning, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune_rounding(model, quantized, data, tune)
    monkeypatch.setattr(tuning, "_train", train)
    monkeypatch.setattr(tuning, "fit_layers", lambda *given, **more: pytest.fail("fitted again"))
    assert tensors(tuning.tune_rounding(model, quantized, data, tune)) == tensors(whole)
    assert not list((tmp_path / "new").iterdir())
