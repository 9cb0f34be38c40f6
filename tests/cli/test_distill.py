"""onward distill: the student is written, the teacher is not touched, bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onward
from tests.cli.conftest import Call, is_one_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """teacher.onnx, student.onnx and data.npz with labels."""
    for name, width in (("teacher", 32), ("student", 4)):
        model = onward.new_model("mlp", features=4, hidden=(width,), classes=3)
        onward.save(model, tmp_path / f"{name}.onnx")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=(x[:, 0] > 0).astype(np.int64))
    return tmp_path


def relu(path: Path) -> str:
    graph = onward.load(path).graph
    return str(next(node for node in graph if node.op_type == "Relu").outputs[0].name)


def test_student_is_written(call: Call, folder: Path) -> None:
    teacher, student, saved = (folder / f"{n}.onnx" for n in ("teacher", "student", "small"))
    before = teacher.read_bytes(), student.read_bytes()
    inner = f"{relu(student)}={relu(teacher)}:cosine"
    called = call(
        "distill", teacher, student, "--data", folder / "data.npz", "--target", "label",
        "--hidden", inner, "--steps", 6, "--metric", "accuracy", "--cache", folder / "cache",
        "--save", saved, "--page", folder / "page.html",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert "multiplications" in called.out and "accuracy" in called.out
    assert f"{saved} is written" in called.out
    assert (teacher.read_bytes(), student.read_bytes()) == before
    assert (
        onward.load(saved).graph.initializers.keys()
        == onward.load(student).graph.initializers.keys()
    )
    assert list((folder / "cache").iterdir()) and "distill" in (folder / "page.html").read_text()


@pytest.mark.integration
def test_layers_make_a_student_and_json_is_printed(call: Call, tmp_path: Path) -> None:
    teacher = onward.new_model("gpt2", layers=3, width=16, heads=2, context=8)
    onward.save(teacher, tmp_path / "t.onnx")
    args = onward.InferenceSession(teacher).get_inputs()
    np.savez(tmp_path / "d.npz", **{a.name: np.ones((4, 8), np.int64) for a in args})
    called = call(
        "distill", tmp_path / "t.onnx", "--layers", 2, "--data", tmp_path / "d.npz",
        "--steps", 1, "--save", tmp_path / "s.onnx", "--json",
    )  # fmt: skip
    report = json.loads(called.out)
    assert report["steps"] == 1 and report["task"] == "distill"
    assert report["after"]["parameters"] < report["before"]["parameters"]


def test_bad_input_is_one_line(call: Call, folder: Path) -> None:
    teacher, student, data = folder / "teacher.onnx", folder / "student.onnx", folder / "data.npz"
    small = folder / "small.onnx"
    to = ("--data", data, "--save", small)
    assert is_one_line(call("distill", teacher, student, "--data", data), "--save is missing")
    assert is_one_line(call("distill", teacher, *to), "give either a STUDENT or --layers")
    assert is_one_line(call("distill", teacher, folder / "x.onnx", *to), "no model at")
    assert is_one_line(call("distill", teacher, student, "--save", small), "needs data")
    saves = call("distill", teacher, student, "--data", data, "--save", teacher)
    assert is_one_line(saves, "--save names the teacher")
    hidden = call("distill", teacher, student, *to, "--hidden", "a")
    assert is_one_line(hidden, "--hidden takes STUDENT=TEACHER", "'a'")
    unknown = call("distill", teacher, student, *to, "--hidden", "a=b")
    assert is_one_line(unknown, "has no value")
    assert is_one_line(call("distill", teacher, "--layers", 1, *to), "no repeated layers")
    assert is_one_line(call("distill", teacher, student, *to, "--loss", "kk"), "no loss 'kk'")
    assert not small.exists()
