"""onward run: its output, its files and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onward
from onward.graph.builder import OpBuilder
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.preprocessing import Preprocessing, store
from tests.cli.conftest import Call, is_one_line
from tests.models import sandwich


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 4), np.float32))
    return tmp_path / "feeds.npz"


def test_outputs_are_shown_with_their_range(call: Call, model: Path, feeds: Path) -> None:
    called = call("run", model, feeds)
    assert called.code == 0
    for word in ("y", "float32", "(2, 2)", "2.0345", "1.7815", "1 run", "on cpu"):
        assert word in called.out


def test_feed_is_given_by_name(call: Call, model: Path, feeds: Path) -> None:
    for arguments in (["--feed", f"x={feeds}"], ["-f", f"x=@{feeds}"], [f"x={feeds}"]):
        assert "(2, 2)" in call("run", model, *arguments).out


def test_json_has_the_data(call: Call, model: Path, feeds: Path) -> None:
    report = json.loads(call("run", model, feeds, "--json", "--top", "1").out)
    assert np.allclose(report["outputs"]["y"]["data"], [[2.0344834, 1.7814713]] * 2)
    assert report["outputs"]["y"]["top"][0][0][0] == 0
    assert report["providers"] == ["CPUExecutionProvider"]


def test_random_feeds_need_the_option(call: Call, model: Path) -> None:
    assert is_one_line(call("run", model), "input 'x' is missing", "--random")
    called = call("run", model, "--random", "--size", "batch=5", "--repeat", "3")
    assert "(5, 2)" in called.out and "3 runs, median" in called.out


def test_seed_determines_random_feeds(call: Call, model: Path) -> None:
    arguments = ("run", model, "--random", "--json", "--seed")

    def outputs(seed: int) -> object:
        return json.loads(call(*arguments, seed).out)["outputs"]

    assert outputs(1) == outputs(1) != outputs(2)


def test_outputs_are_saved(call: Call, model: Path, feeds: Path, tmp_path: Path) -> None:
    all_of_them, one, text = (tmp_path / name for name in ("o.npz", "y.npy", "y.json"))
    call("run", model, feeds, "--save", all_of_them, "--output", f"y={one}")
    call("run", model, feeds, "--save", text)
    expected = onward.InferenceSession(model).run(None, dict(np.load(feeds)))[0]
    assert np.array_equal(np.load(all_of_them)["y"], expected)
    assert np.array_equal(np.load(one), expected)
    assert np.allclose(json.loads(text.read_text())["y"], expected)


def test_top_classes_are_shown(call: Call, model: Path, feeds: Path) -> None:
    called = call("run", model, feeds, "--top", "2")
    assert "the largest values along the last axis" in called.out and "class" in called.out


def test_image_is_fed_and_its_layout_printed(call: Call, tmp_path: Path) -> None:
    op = OpBuilder()
    image = op.input("image", "float32", ("batch", 3, 8, 8))
    onward.save(op.model(mean=op.ReduceMean(image, [1, 2, 3])), tmp_path / "m.onnx")
    Image.new("RGB", (20, 10), (255, 255, 255)).save(tmp_path / "white.png")
    called = call("run", tmp_path / "m.onnx", tmp_path / "white.png", "--mean", "0.5")
    assert "as NCHW, 8 x 8, RGB, / 255 - (0.5)" in called.out and "0.5" in called.out
    (tmp_path / "bad.png").write_bytes(b"no")
    bad = call("run", tmp_path / "m.onnx", tmp_path / "bad.png")
    assert is_one_line(bad, "is not an image that Pillow can read")
    assert is_one_line(
        call("run", tmp_path / "m.onnx", tmp_path / "white.png", "--mean", "a"), "--mean takes"
    )


def test_nan_is_a_warning(call: Call, tmp_path: Path) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (2,))
    onward.save(op.model(y=op.Log(op.Mul(x, -1.0))), tmp_path / "m.onnx")
    (tmp_path / "f.json").write_text("[1, 0]")
    called = call("run", tmp_path / "m.onnx", tmp_path / "f.json")
    assert "warning: output 'y' has 1 NaN and 1 infinite of 2 values" in called.out
    report = json.loads(call("run", tmp_path / "m.onnx", tmp_path / "f.json", "--json").out)
    assert report["outputs"]["y"]["data"] == ["nan", "-inf"]


def test_providers_have_short_names(call: Call, tmp_path: Path) -> None:
    onward.save(sandwich(), tmp_path / "s.onnx")
    called = call("run", tmp_path / "s.onnx", "--random", "-p", "torch:device=cpu", "-p", "cpu")
    assert called.code == 0 and "on torch" in called.out
    wrong = call("run", tmp_path / "s.onnx", "--random", "--provider", "torhc")
    assert is_one_line(wrong, "no provider 'torhc'", "did you mean 'torch'?")
    odd = call("run", tmp_path / "s.onnx", "--random", "--provider", "torch:frob=1")
    assert is_one_line(odd, "has no option 'frob'")
    assert is_one_line(
        call("run", tmp_path / "s.onnx", "--random", "--provider", "torch:frob"), "NAME=VALUE"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "batch"], "--size takes NAME=N"),
        (["--size", "batch=x"], "--size takes NAME=N"),
        (["--size", "bach=2"], "no dynamic dimension 'bach'"),
        (["--output", "y"], "--output takes NAME=FILE"),
        (["--output", "z=z.npy"], "no output 'z'; the outputs are 'y'"),
        (["--save", "o.txt"], "saved as .npz or .json"),
        (["--save", "nowhere/o.npz"], "there is no folder nowhere"),
        (["--threads", "-1"], "--threads"),
        (["--repeat", "0"], "--repeat"),
        (["none.npy"], "no feeds file at none.npy"),
        (["z=none.npy"], "no input 'z'"),
    ],
)
def test_bad_arguments_are_one_line(
    call: Call, model: Path, arguments: list[str], message: str
) -> None:
    assert is_one_line(call("run", model, "--random", *arguments), message)


def test_failing_run_with_default_sizes_has_a_hint(call: Call, tmp_path: Path) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n",))
    onward.save(op.model(y=op.Reshape(x, [2, 2])), tmp_path / "m.onnx")
    called = call("run", tmp_path / "m.onnx", "--random", "-p", "cpu")
    assert is_one_line(called, "dynamic dimensions are 1 by default", "--size (n, x:0)")


def test_bad_feeds_are_refused_before_a_session_is_opened(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr("onward.cli.run.InferenceSession", opened)
    np.save(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    assert is_one_line(call("run", model, tmp_path / "x.npy"), "(batch, 4)", "(2, 5)")
    assert is_one_line(call("run", model), "input 'x' is missing")


def test_a_stored_preprocessing_reads_data_and_names_classes(call: Call, tmp_path: Path) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 2))
    model = op.model(scores=op.MatMul(x, op.initializer("w", np.eye(2, dtype=np.float32))))
    source = FeedSource("x", ("a", "b"), {}, "float32", (None, 2))
    store(model, Preprocessing((source,), output="scores", classes=("cat", "dog")))
    path, rows = tmp_path / "model.onnx", tmp_path / "rows.csv"
    onward.save(model, path)
    rows.write_text("b,a,note\n1,2,first\n4,3,second\n")
    called = call("run", path, rows, "--top", "2")
    for word in ("2 rows of", "prepared as in training", "answers: cat, dog", "class"):
        assert word in called.out
    report = json.loads(call("run", path, rows, "--json").out)
    assert report["answers"] == ["cat", "dog"]
    assert report["outputs"]["scores"]["data"] == [[2, 1], [3, 4]]
    rows.write_text("a\n1\n")
    assert is_one_line(call("run", path, rows), "has no column 'b'", "'a'")
