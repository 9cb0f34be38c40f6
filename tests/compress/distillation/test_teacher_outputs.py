"""TeacherOutputs: a teacher runs once for each batch; its answers stay in memory or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress.distillation.teacher_outputs import TeacherOutputs, model_digest
from onward.errors import DataError, OptionError
from onward.graph.builder import OpBuilder

Array = np.ndarray[Any, Any]


def teacher(seed: int = 0) -> ir.Model:
    return onward.new_model("mlp", seed=seed, features=4, hidden=(8,), classes=3)


def feeds(seed: int, rows: int = 5) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)}


def test_teacher_runs_once_for_a_batch() -> None:
    answers = TeacherOutputs(teacher())
    first = answers.of(feeds(0))
    again = answers.of(feeds(0))
    answers.of(feeds(1))
    assert answers.runs == 2
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_answers_equal_the_teachers_outputs(memory: int) -> None:
    answers, model = TeacherOutputs(teacher(), memory=memory), teacher()
    expected = onward.InferenceSession(model).run(None, feeds(3))[0]
    for _ in range(2):
        assert np.array_equal(answers.of(feeds(3))[answers.names[0]], expected)
    assert answers.runs == 1


def test_folder_keeps_answers_for_later(tmp_path: Path) -> None:
    TeacherOutputs(teacher(), folder=tmp_path).of(feeds(0))
    later = TeacherOutputs(teacher(), folder=tmp_path)
    later.of(feeds(0))
    assert later.runs == 0
    other = TeacherOutputs(teacher(seed=1), folder=tmp_path)
    other.of(feeds(0))
    assert other.runs == 1  # another teacher has other answers


def test_damaged_file_is_computed_again(tmp_path: Path) -> None:
    expected = TeacherOutputs(teacher(), folder=tmp_path).of(feeds(0))
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-3] + b"???")
    later = TeacherOutputs(teacher(), folder=tmp_path)
    found = later.of(feeds(0))
    assert later.runs == 1
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_inner_values_are_answers() -> None:
    model = teacher()
    relu = next(node for node in model.graph if node.op_type == "Relu").outputs[0].name
    assert TeacherOutputs(model, [relu]).of(feeds(0))[relu].shape == (5, 8)


def test_teacher_with_a_fixed_batch_answers_larger_ones() -> None:
    op = OpBuilder()
    model = op.model(y=op.Mul(op.input("x", "float32", [1, 4]), np.float32(2)))
    x = feeds(0)["x"]
    answers = TeacherOutputs(model)
    assert np.array_equal(answers.of({"x": x})["y"], 2 * x)
    assert answers.runs == 1


def test_unknown_value_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the teacher has no value 'logit'"):
        TeacherOutputs(teacher(), ["logit"])


def test_answers_that_are_not_finite_are_refused() -> None:
    op = OpBuilder()
    answers = TeacherOutputs(op.model(y=op.Log(op.input("x", "float32", ["n", 4]))))
    with pytest.raises(DataError, match="output 'y' has NaN or infinite numbers"):
        answers.of({"x": np.zeros((2, 4), np.float32)})


def test_digest_depends_on_weights_and_not_on_the_object() -> None:
    assert model_digest(teacher()) == model_digest(teacher().clone())
    assert model_digest(teacher()) != model_digest(teacher(seed=1))
