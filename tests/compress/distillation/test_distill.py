"""distill: the student learns without labels, alone in its file; the teacher runs in one epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import Hidden, Report, distill
from onward.errors import DataError, OnwardError, OptionError
from onward.graph.builder import OpBuilder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype(np.float32)
ROWS = {"x": X, "label": (X[:, 0] > 0).astype(np.int64)}


def mlp(width: int, seed: int) -> ir.Model:
    return onward.new_model("mlp", seed=seed, features=6, hidden=(width,), classes=4)


def relu(model: ir.Model) -> str:
    return str(next(node for node in model.graph if node.op_type == "Relu").outputs[0].name)


def train(student: ir.Model, data: Any = None, teacher: Any = None, **options: Any) -> Report:
    given = {"steps": 40, "learning_rate": 1e-2, "temperature": 1.0, **options}
    return distill(teacher or mlp(32, 0), student, {"x": X} if data is None else data, **given)


def test_student_learns_without_labels_and_the_second_epoch_runs_no_teacher() -> None:
    report = train(mlp(8, 1), epochs=5, steps=None, batch=16)
    assert report.details["teacher_runs"] == [6, 0, 0, 0, 0]
    assert report.details["steps"] == 30 and len(report.details["losses"]) == 30
    assert report.details["losses"][-1] < 0.5 * report.details["losses"][0]
    assert report.after.parameters < report.before.parameters
    assert 80 <= report.after.macs < 90 and 320 <= report.before.macs < 350  # biases included
    assert report.helped  # more similar to the teacher than before training
    assert "similarity to the teacher" in str(report)


def test_training_that_made_it_worse_is_reported() -> None:
    teacher = mlp(8, 0)
    report = train(mlp(8, 0), teacher=teacher, learning_rate=10.0, steps=5)  # begins as the teacher
    assert not report.helped and "training made it worse" in str(report)


@pytest.mark.integration
def test_cache_on_disk_needs_no_teacher_in_a_later_call(tmp_path: Path) -> None:
    train(mlp(8, 1), cache=tmp_path, batch=16)
    later = train(mlp(4, 2), cache=tmp_path, batch=16)
    assert sum(later.details["teacher_runs"]) == 0


@pytest.mark.integration
def test_same_seed_gives_the_same_student() -> None:
    a, b = (train(mlp(8, 1), steps=10).model.graph.initializers for _ in range(2))
    assert all(np.array_equal(a[n].const_value.numpy(), b[n].const_value.numpy()) for n in a)


def test_labels_and_metric(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **ROWS)
    report = train(
        mlp(8, 1), tmp_path / "rows.npz", target="label", alpha=0.0, metric="accuracy", steps=150
    )
    assert report.metric_name == "accuracy"
    assert report.after.quality.metric > 0.9 > report.before.quality.metric


@pytest.mark.parametrize("loss", ["mse", "cosine"])
def test_projection_is_learned_and_not_exported(loss: str, tmp_path: Path) -> None:
    student, teacher = mlp(8, 1), mlp(32, 0)
    hidden = [Hidden(relu(student), relu(teacher), loss=loss)]
    report = train(student, teacher=teacher, hidden=hidden)
    assert report.details["losses"][-1] < report.details["losses"][0]
    report.save(tmp_path / "student.onnx")
    saved = onward.load(tmp_path / "student.onnx")
    assert [v.name for v in saved.graph.outputs] == [v.name for v in student.graph.outputs]
    assert saved.graph.initializers.keys() == student.graph.initializers.keys()
    assert len(saved.graph) == len(student.graph)


def test_projection_of_channels() -> None:
    def cnn(channels: int, seed: int) -> ir.Model:
        return onward.new_model(
            "cnn", seed=seed, image=(1, 8, 8), channels=(channels,), hidden=8, classes=3
        )

    images = RNG.normal(size=(32, 1, 8, 8)).astype(np.float32)
    student, teacher = cnn(2, 1), cnn(6, 0)
    name = onward.InferenceSession(student).get_inputs()[0].name
    report = train(
        student, {name: images}, teacher, hidden=[Hidden(relu(student), relu(teacher))], steps=5
    )
    assert report.model.graph.initializers.keys() <= student.graph.initializers.keys()


@pytest.mark.integration
def test_attention_relations_of_different_widths() -> None:
    def encoder(width: int, seed: int) -> ir.Model:
        return onward.new_model(
            "bert", seed=seed, layers=1, width=width, heads=2, vocabulary=20, context=8
        )

    def norm(model: ir.Model) -> str:
        nodes = [node for node in model.graph if node.op_type == "LayerNormalization"]
        return str(nodes[-1].outputs[0].name)

    student, teacher = encoder(16, 1), encoder(32, 0)
    session = onward.InferenceSession(student)
    feeds = {a.name: RNG.integers(1, 2, (8, 6)).astype(np.int64) for a in session.get_inputs()}
    feeds[session.get_inputs()[0].name] = RNG.integers(0, 20, (8, 6))
    hidden = [Hidden(norm(student), norm(teacher), loss="attention", heads=2)]
    report = train(student, feeds, teacher, hidden=hidden, steps=8)
    assert report.details["losses"][-1] < report.details["losses"][0]


def test_several_teachers_are_averaged() -> None:
    teachers = [mlp(16, 0), mlp(24, 5)]
    report = train(mlp(24, 1), teacher=teachers, weights=[3, 1], loss="mse", steps=400)
    outputs = [onward.InferenceSession(m).run(None, {"x": X})[0] for m in teachers]
    student = onward.InferenceSession(report.model).run(None, {"x": X})[0]
    mean = 0.75 * outputs[0] + 0.25 * outputs[1]
    near = [np.square(student - y).mean() for y in (mean, *outputs)]
    assert near[0] == min(near)


def two_outputs(seed: int, names: tuple[str, str], *, probabilities: bool = False) -> ir.Model:
    op, rng = OpBuilder(), np.random.default_rng(seed)
    x = op.input("x", "float32", ["n", 6])

    def linear(name: str, size: int) -> ir.Value:
        return op.MatMul(x, op.initializer(name, rng.normal(size=(6, size)).astype(np.float32)))

    scores = linear("a", 4)
    outputs = {names[0]: op.Softmax(scores) if probabilities else scores, names[1]: linear("b", 1)}
    return op.model(**outputs)


def test_several_outputs_with_losses_of_their_own() -> None:
    teacher, student = two_outputs(0, ("class", "size")), two_outputs(1, ("c", "s"))
    report = train(
        student, teacher=teacher, pairs={"c": "class", "s": "size"},
        loss={"c": "kl", "s": "mse"}, steps=300, learning_rate=3e-2,
    )  # fmt: skip
    assert report.details["losses"][-1] < 0.05 * report.details["losses"][0]


def test_logits_before_a_softmax_are_compared() -> None:
    teacher = two_outputs(0, ("class", "size"), probabilities=True)
    student = two_outputs(1, ("class", "size"), probabilities=True)
    report = train(
        student,
        teacher=teacher,
        loss={"class": "kl"},
        temperature=4.0,
        steps=300,
        learning_rate=5e-2,
    )
    ours, its = (onward.InferenceSession(m).run(None, {"x": X})[0] for m in (report.model, teacher))
    assert np.abs(ours - its).mean() < 0.05
    assert [v.name for v in report.model.graph.outputs] == ["class", "size"]


@pytest.mark.integration
def test_standardized_logits_learn_from_a_teacher_of_another_scale() -> None:
    op = OpBuilder()
    w = (1000 * RNG.normal(size=(6, 4))).astype(np.float32)
    teacher = op.model(y=op.MatMul(op.input("x", "float32", ["n", 6]), w))
    student = mlp(16, 1)
    plain = train(student, teacher=teacher)
    assert any("has a deviation of" in note for note in plain.notes)
    report = train(student, teacher=teacher, standardized=True, steps=150)
    assert report.after.quality.similarity > 0.9
    assert not any("has a deviation of" in note for note in report.notes)


def test_student_may_have_fewer_inputs_and_a_dynamic_batch() -> None:
    op = OpBuilder()
    x, more = op.input("x", "float32", [1, 6]), op.input("more", "float32", [1, 6])
    teacher = op.model(y=op.MatMul(op.Add(x, more), np.ones((6, 4), np.float32)))
    data = {"x": X, "more": np.zeros_like(X)}
    report = train(mlp(8, 1), data, teacher, loss="mse", batch=16)
    assert report.details["teacher_runs"][0] == 6
    assert [v.name for v in report.model.graph.inputs] == ["x"]


def bad(
    student: ir.Model, message: str, kind: type[OnwardError] = OptionError, **more: Any
) -> None:
    with pytest.raises(kind, match=message):
        train(student, **more)


def test_bad_input_is_named() -> None:
    student, teacher = mlp(8, 1), mlp(32, 0)
    inner = relu(student)
    bad(student, "the student has no value 'nope'", hidden=[Hidden("nope", relu(teacher))])
    bad(student, "the teacher has no value 'nope'", hidden=[Hidden(inner, "nope")])
    unprojected = Hidden(inner, relu(teacher), projected=False)
    bad(student, "has width 8, the teacher's .* 32", teacher=teacher, hidden=[unprojected])
    flat = Hidden(inner, str(list(teacher.graph)[-1].outputs[0].name), loss="attention")
    bad(student, "needs \\(batch, time, width\\)", teacher=teacher, hidden=[flat])
    bad(student, "reads teacher 1", hidden=[Hidden(inner, inner, of=1)])
    bad(student, "hidden must be a list of Hidden", hidden=["a=b"])
    bad(student, "there is no loss 'kll'", loss="kll")
    bad(student, "weights must be one number", weights=[1, 2])
    bad(student, "epochs must be at least 1", epochs=0)
    bad(student, "uses labels for a part of the loss", DataError, alpha=0.5)
    with pytest.raises(DataError, match="distillation needs data"):
        distill(teacher, student, None)
    bad(student, "NaN or infinite", DataError, data={"x": np.full((4, 6), np.nan, np.float32)})
    bad(student, "compares outputs with targets", metric="accuracy")
    other = onward.new_model("mlp", features=6, hidden=(8,), classes=7)
    bad(other, "only values of one shape can be compared")


def test_student_without_weights_is_refused() -> None:
    op = OpBuilder()
    student = op.model(y=op.Relu(op.input("x", "float32", ["n", 6])))
    op = OpBuilder()
    teacher = op.model(y=op.Mul(op.input("x", "float32", ["n", 6]), np.float32(2)))
    bad(student, "there is nothing to train", teacher=teacher, loss="mse")
