"""match_teacher: a student's outputs become the teacher's; it continues after Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress.calibration import Calibration
from onward.compress.distillation.match_teacher import match_teacher, teacher_input
from onward.compress.distillation.student_training import Limits, TrainedStudent
from onward.compress.distillation.teacher_outputs import TeacherOutputs
from onward.errors import NotFinite, OptionError
from onward.graph.builder import OpBuilder
from onward.losses import L1

ROWS = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}


def mlp(seed: int) -> ir.Model:
    return onward.new_model("mlp", seed=seed, features=4, hidden=(16,), classes=3)


def data(model: ir.Model) -> Calibration:
    return Calibration(ROWS, onward.InferenceSession(model).get_inputs(), batch=16)


def weights(model: ir.Model) -> dict[str, Any]:
    return {n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value}


def error(a: ir.Model, b: ir.Model) -> float:
    ya, yb = (onward.InferenceSession(model).run(None, ROWS)[0] for model in (a, b))
    return float(np.square(ya - yb).mean())


@pytest.mark.parametrize("loss", ["mse", "cosine", "kl", "own"])
def test_student_comes_closer(loss: str) -> None:
    teacher, student = mlp(0), mlp(1)
    before, kept = error(student, teacher), weights(student)
    name = str(student.graph.outputs[0].name)
    given = L1(target=teacher_input(name)) if loss == "own" else loss
    results: list[TrainedStudent] = []
    trained = match_teacher(
        student, teacher, data(student), loss=given, steps=60, learning_rate=1e-2,
        on_trained=results.append,
    )  # fmt: skip
    assert results[0].losses[-1] < 0.5 * results[0].losses[0]
    assert loss in ("cosine", "kl") or error(trained, teacher) < 0.5 * before
    assert all(np.array_equal(kept[n], w) for n, w in weights(student).items())  # not changed


def test_same_seed_gives_the_same_bytes() -> None:
    runs = [
        match_teacher(mlp(1), mlp(0), data(mlp(1)), steps=10, learning_rate=1e-2) for _ in range(2)
    ]
    a, b = map(weights, runs)
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_answers_are_shared_by_several_calls() -> None:
    answers = TeacherOutputs(mlp(0))
    for _ in range(2):
        match_teacher(mlp(1), answers, data(mlp(1)), steps=8)
    assert answers.runs == 4  # batches, not steps


def test_only_named_parameters_change_and_groups_have_their_rates() -> None:
    student = mlp(1)
    names = list(weights(student))
    trained = weights(match_teacher(student, mlp(0), data(student), steps=3, trained=[names[0]]))
    changed = [n for n in names if not np.array_equal(trained[n], weights(student)[n])]
    assert changed == [names[0]]
    still = weights(match_teacher(student, mlp(0), data(student), steps=3, groups={names[0]: 0.0}))
    changed = [n for n in names if not np.array_equal(still[n], weights(student)[n])]
    assert changed == names[1:]


def test_scalars_are_trained_if_they_are_named() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ["n", 4])
    w = op.initializer("w", np.eye(4, dtype=np.float32))
    student = op.model(y=op.Mul(op.MatMul(x, w), op.initializer("scale", np.float32(1))))
    op = OpBuilder()
    teacher = op.model(y=op.Mul(op.input("x", "float32", ["n", 4]), np.float32(3)))
    options: dict[str, Any] = {"steps": 3, "learning_rate": 0.1}
    alone = weights(match_teacher(student, teacher, data(student), **options))
    both = weights(
        match_teacher(student, teacher, data(student), trained=("*", "scale"), **options)
    )
    assert alone["scale"] == 1 and both["scale"] > 1
    assert not np.array_equal(both["w"], np.eye(4))


class Interrupted:
    """A progress that presses Ctrl-C after a number of steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> float:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return 0.0


def test_interrupted_call_continues_to_the_same_bytes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 12, "learning_rate": 1e-2}
    whole = weights(match_teacher(mlp(1), mlp(0), data(mlp(1)), **options))
    with pytest.raises(KeyboardInterrupt):
        match_teacher(
            mlp(1), mlp(0), data(mlp(1)), folder=tmp_path, clock=Interrupted(8), **options
        )
    assert list(tmp_path.iterdir())
    results: list[TrainedStudent] = []
    continued = match_teacher(
        mlp(1), mlp(0), data(mlp(1)), folder=tmp_path, on_trained=results.append, **options
    )
    assert 0 < len(results[0].losses) < 12 and results[0].steps == 12
    assert all(np.array_equal(whole[name], w) for name, w in weights(continued).items())
    assert not list(tmp_path.iterdir())


def test_state_of_another_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        match_teacher(mlp(1), mlp(0), data(mlp(1)), folder=tmp_path, clock=Interrupted(4), steps=9)
    with pytest.raises(OptionError, match="is of another training"):
        match_teacher(mlp(1), mlp(2), data(mlp(1)), folder=tmp_path, steps=9)


def test_training_ends_at_the_deadline() -> None:
    results: list[TrainedStudent] = []
    times = iter(range(1000))
    match_teacher(
        mlp(1), mlp(0), data(mlp(1)), seconds=10, clock=lambda: next(times),
        on_trained=results.append,
    )  # fmt: skip
    assert 0 < results[0].steps <= 10


def test_schedules_end_at_a_tenth() -> None:
    cosine, steps = Limits(steps=10), Limits(steps=10, schedule="high-low")
    assert cosine.factor(0) == pytest.approx(1) and cosine.factor(1) == pytest.approx(0.1)
    assert steps.factor(0.6) == 1 and steps.factor(0.7) == 0.1
    assert Limits(schedule="constant").factor(0.9) == 1


def test_batch_norms_and_dropout_stay_in_inference_mode() -> None:
    student = onward.new_model("cnn", image=(1, 8, 8), channels=(4,), hidden=8, classes=3)
    rows = {"image": np.random.default_rng(0).normal(size=(8, 1, 8, 8)).astype(np.float32)}
    session = onward.InferenceSession(student)
    name = session.get_inputs()[0].name
    calibration = Calibration({name: rows["image"]}, session.get_inputs())
    results: list[TrainedStudent] = []
    match_teacher(student, student, calibration, steps=2, on_trained=results.append)
    assert results[0].losses == pytest.approx([0, 0], abs=1e-12)  # it is its own teacher


def test_gradients_that_are_never_finite_stop_training() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ["n", 4])
    w = op.initializer("w", np.full((4, 2), 1e30, np.float32))
    student = op.model(y=op.MatMul(x, w))
    op = OpBuilder()
    teacher = op.model(
        y=op.MatMul(op.input("x", "float32", ["n", 4]), np.eye(4, 2, dtype=np.float32))
    )
    with pytest.raises(NotFinite, match="steps in a row are not finite"):
        match_teacher(student, teacher, data(student), steps=50)


def test_bad_input_is_named() -> None:
    student, teacher = mlp(1), mlp(0)
    name = str(student.graph.outputs[0].name)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"pairs": {"nothing": name}}, "the student has no output 'nothing'"),
        ({"pairs": {name: "nothing"}}, "the teacher has no output 'nothing'"),
        ({"pairs": {}}, "pairs is empty"),
        ({"loss": "mes"}, "there is no loss 'mes'\ndid you mean 'mse'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"seconds": -1.0}, "seconds must be more than 0"),
        ({"schedule": "up"}, "there is no schedule 'up'"),
        ({"trained": ["zzz"]}, "zzz"),
    ]
    for options, message in cases:
        with pytest.raises(OptionError, match=message):
            match_teacher(student, teacher, data(student), **options)
