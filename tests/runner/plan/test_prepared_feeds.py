"""Feeds from data files, by the preprocessing of a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onward
from onward.errors import ColumnMissing, DataError, FileMissing
from onward.runner.architectures.new_model import new_model
from onward.runner.plan.prepared_feeds import prepare_feeds
from tests.runner.plan.planned_runs import export, images, mlp, plan_of, table


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return export(plan_of(mlp(), table()), tmp_path / "model.onnx")


def test_rows_of_a_table_are_prepared_as_in_training(trained: Path) -> None:
    rows = trained.parent / "rows.csv"
    data = table()
    lines = [",".join(repr(float(data[name][row])) for name in "dcba") for row in range(3)]
    rows.write_text("\n".join(["d,c,b,a", *lines]))
    prepared = prepare_feeds(trained, [str(rows)])
    assert prepared is not None and "3 rows" in prepared.note
    raw = {name: np.asarray(data[name][:3]) for name in "abcd"}
    assert (prepared.feeds["x"] == prepared.preprocessing.feeds(raw, target=False)["x"]).all()
    one = trained.parent / "rows.json"
    one.write_text(json.dumps({name: float(data[name][0]) for name in "abcd"}))
    found = prepare_feeds(trained, [str(one)])
    assert found is not None and (found.feeds["x"] == prepared.feeds["x"][:1]).all()
    rows.write_text("a,b,c,d\n1,2,3,\n")  # a missing value becomes the mean
    found = prepare_feeds(trained, [str(rows)])
    assert found is not None and abs(found.feeds["x"][0, 3]) < 1e-6


def test_a_missing_whole_number_becomes_the_mean(tmp_path: Path) -> None:
    data = {**table(), "d": np.arange(20)}
    path = export(plan_of(mlp(), data), tmp_path / "model.onnx")
    (tmp_path / "rows.csv").write_text("a,b,c,d\n1,2,3,\n")
    found = prepare_feeds(path, [str(tmp_path / "rows.csv")])
    assert found is not None and abs(found.feeds["x"][0, 3]) < 0.2  # near 0: the mean


def test_files_of_feeds_stay_feeds(trained: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.zeros((1, 4), np.float32))
    np.savez(tmp_path / "columns.npz", **{name: np.zeros(2) for name in "abcd"})
    assert prepare_feeds(trained, [str(tmp_path / "feeds.npz")]) is None
    assert prepare_feeds(trained, ["x=feeds.npy"]) is None
    found = prepare_feeds(trained, [str(tmp_path / "columns.npz")])
    assert found is not None and found.feeds["x"].shape == (2, 4)
    onward.save(mlp(), tmp_path / "plain.onnx")
    assert prepare_feeds(tmp_path / "plain.onnx", [str(tmp_path / "columns.npz")]) is None


def test_wrong_files_are_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(ColumnMissing, match=r"has no column 'd'"):
        prepare_feeds(trained, [str(tmp_path / "few.csv")])
    with pytest.raises(FileMissing):
        prepare_feeds(trained, [str(tmp_path / "none.csv")])
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"is an image, but the model takes the columns a, b, c, d"):
        prepare_feeds(trained, [str(tmp_path / "a.png")])


def test_images_and_folders_of_images(tmp_path: Path) -> None:
    for number, pixels in enumerate(images(8, 5, 7, 3)):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    plan = plan_of(new_model("cnn", image=(3, 6, 6), classes=2), tmp_path / "photos", flip=True)
    assert plan.classes == ("cat", "dog")
    model = export(plan, tmp_path / "model.onnx")
    whole = prepare_feeds(model, [str(tmp_path / "photos")])
    one = prepare_feeds(model, [str(tmp_path / "photos" / "cat" / "1.png")])
    assert whole is not None and one is not None
    assert whole.feeds["image"].shape == (8, 3, 6, 6)
    assert (one.feeds["image"][0] == whole.feeds["image"][0]).all()


def test_text_is_encoded_with_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello world. " * 9)
    model = new_model("gpt2", layers=1, heads=1, width=4, vocabulary=9, context=8)
    path = export(plan_of(model, tmp_path / "text.txt"), tmp_path / "model.onnx")
    (tmp_path / "prompt.txt").write_text("hello\n", "utf-8-sig")
    found = prepare_feeds(path, [str(tmp_path / "prompt.txt")])
    assert found is not None and found.feeds["tokens"].tolist() == [[4, 3, 5, 5, 6]]
    (tmp_path / "prompt.txt").write_text("hex")
    with pytest.raises(DataError, match="has 'x' as character 2"):
        prepare_feeds(path, [str(tmp_path / "prompt.txt")])


def test_a_csv_file_without_a_header(tmp_path: Path) -> None:
    rows = list(zip(*table().values()))
    lines = [",".join(map(str, row)) for row in rows]
    data, few = tmp_path / "data.csv", tmp_path / "few.csv"
    data.write_text("\n".join(lines))
    few.write_text(lines[0])  # one line: its types say nothing
    plan = plan_of(mlp(), data, few)
    [said] = [str(each) for each in plan.choices if each.what == "header"]
    assert said.startswith("header: none: columns are called column0 to column4 (its first line, ")
    assert said.endswith("has the types of the rows below; --header if it has names)")
    assert plan.sizes == {"training rows": 20, "validation rows": 1}
    path = export(plan, tmp_path / "model.onnx")
    found = prepare_feeds(path, [str(few)])
    assert found is not None and found.feeds["x"].shape == (1, 4)
    data.write_text("\n".join([",".join(["a", "b", "7", "d", "kind"]), *lines]))
    choices = {each.what: each for each in plan_of(mlp(), data).choices}
    assert choices["header"].value == "names in the first line"
    assert "--no-header if it is a row" in choices["header"].why
