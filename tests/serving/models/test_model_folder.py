"""model_folder: which models a file or folder has, and when their files changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from onward.errors import FileMissing, InvalidModel
from onward.serving.models.model_folder import ModelFiles, find_model, find_models, fingerprint


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def shown(models: list[ModelFiles], root: Path) -> dict[str, dict[int, str]]:
    return {
        model.name: {n: path.relative_to(root).as_posix() for n, path in model.versions.items()}
        for model in models
    }


@pytest.mark.parametrize(
    ("files", "models"),
    [
        (["model.onnx", "tokenizer.json"], {"root": {1: "model.onnx"}}),
        (["a.onnx", "b.ort", "a.onnx.data"], {"a": {1: "a.onnx"}, "b": {1: "b.ort"}}),
        (["1/model.onnx", "10/model.onnx", "2/m.onnx"],
         {"root": {1: "1/model.onnx", 2: "2/m.onnx", 10: "10/model.onnx"}}),
        (["a/1/model.onnx", "b/net.onnx", ".git/1/model.onnx"],
         {"a": {1: "a/1/model.onnx"}, "b": {1: "b/net.onnx"}}),
        (["a/1/model.onnx/model.onnx", "a/1/model.onnx/weights"],
         {"a": {1: "a/1/model.onnx/model.onnx"}}),
        (["a/1/.model.onnx.swp", "a/1/model.ort", "a/01/model.onnx", "a/0/model.onnx"],
         {"a": {1: "a/1/model.ort"}}),
        ([], {}),
    ],
)  # fmt: skip
def test_models_of_a_folder(
    tmp_path: Path, files: list[str], models: dict[str, dict[int, str]]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    touch(root, *files)
    assert shown(find_models(root), root) == models


def test_a_file_is_one_model(tmp_path: Path) -> None:
    touch(tmp_path, "digits.onnx", "other.onnx")
    [model] = find_models(tmp_path / "digits.onnx")
    assert (model.name, model.versions) == ("digits", {1: tmp_path / "digits.onnx"})


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["a/readme.md"], "a has no model: put one at a/1/model.onnx"),
        (["a/1/readme.md"], r"1 has no model file \(.onnx, .ort\): name one of them model.onnx"),
        (["a/1/x.onnx", "a/1/y.onnx"], r"several model files \('x.onnx', 'y.onnx'\)"),
        (["a/x.onnx", "a/y.onnx"], r"several model files .* put one at a/1/model.onnx"),
    ],
)
def test_a_bad_folder_gives_one_line(tmp_path: Path, files: list[str], problem: str) -> None:
    touch(tmp_path, *files, "ok/1/model.onnx")
    bad, ok = find_models(tmp_path)
    assert not bad.versions and "\n" not in bad.problem
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(bad.problem)
    assert ok.versions and not ok.problem


def test_a_config_names_the_file(tmp_path: Path) -> None:
    touch(tmp_path, "a/1/net.onnx", "a/1/model.onnx")
    config = tmp_path / "a" / "config.pbtxt"
    config.write_text('default_model_filename: "net.onnx"')
    [model] = find_models(tmp_path)
    assert model.versions[1].name == "net.onnx"
    assert find_models(tmp_path / "a") == [model]
    config.write_text('default_model_filename: "missing.onnx"')
    assert "has no missing.onnx, which config.pbtxt names" in find_models(tmp_path)[0].problem
    config.write_text("name")
    assert "config.pbtxt:1: expected ':'" in find_models(tmp_path)[0].problem


def test_an_ensemble_needs_no_model_file(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "config.pbtxt").write_text("ensemble_scheduling { }")
    assert find_models(tmp_path)[0].versions == {1: tmp_path / "all"}


def test_missing_paths_and_twins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="no model at"):
        find_models(tmp_path / "nothing")
    touch(tmp_path, "a.onnx", "a/1/model.onnx")
    with pytest.raises(InvalidModel, match="two models named 'a'"):
        find_models(tmp_path)
    assert find_model(tmp_path, "a") is None


def test_a_fingerprint_changes_with_the_files_of_the_version(tmp_path: Path) -> None:
    touch(tmp_path, "a/1/model.onnx", "a/2/model.onnx", "b/1/model.onnx")
    model = find_model(tmp_path, "a")
    assert model is not None
    first, second = fingerprint(model, 1), fingerprint(model, 2)
    touch(tmp_path, "b/1/more", "a/1/.hidden")
    assert fingerprint(model, 1) == first
    (tmp_path / "a/2/weights.bin").write_bytes(b"1")
    assert fingerprint(model, 1) == first and fingerprint(model, 2) != second
    os.utime(tmp_path / "a/1/model.onnx", ns=(1, 1))
    assert fingerprint(model, 1) != first
    first = fingerprint(model, 1)
    (tmp_path / "a/labels.txt").write_text("cat")
    assert fingerprint(model, 1) != first


def test_the_fingerprint_of_a_single_file_ignores_other_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.onnx", "a.onnx.data")
    [model] = find_models(tmp_path / "a.onnx")
    before = fingerprint(model, 1)
    touch(tmp_path, "b.onnx", "server.log")
    assert fingerprint(model, 1) == before
    (tmp_path / "a.onnx.data").write_bytes(b"12")
    assert fingerprint(model, 1) != before


def test_links_have_their_own_names(tmp_path: Path) -> None:
    touch(tmp_path / "store", "v3/1/model.onnx", "file.onnx")
    root = tmp_path / "models"
    root.mkdir()
    for name in ("a", "b"):
        (root / name).symlink_to(tmp_path / "store" / "v3")
    (root / "c.onnx").symlink_to(tmp_path / "store" / "file.onnx")
    (root / "itself").symlink_to("itself")
    (root / "gone").symlink_to(tmp_path / "nowhere")
    (root / "above").symlink_to(root)
    found = {model.name: model for model in find_models(root)}
    assert sorted(found) == ["a", "above", "b", "c"]
    assert not any(model.problem for model in found.values())
    (tmp_path / "current").symlink_to(tmp_path / "store" / "v3")
    assert [model.name for model in find_models(tmp_path / "current")] == ["current"]


def test_links_that_lead_in_circles_are_followed_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    touch(root, "a/1/model.onnx", "other/data")
    for name in ("up", "up2"):
        (root / "a" / "1" / name).symlink_to("..")
    (root / "a" / "1" / "here").symlink_to(".")
    (root / "a" / "1" / "other").symlink_to(root / "other")
    model = find_model(root, "a")
    assert model is not None
    before = fingerprint(model, 1)
    assert sorted(name for name, *_ in before) == ["1/model.onnx", "1/other/data"]
    (root / "other" / "data").write_bytes(b"new")
    assert fingerprint(model, 1) != before


@pytest.mark.parametrize("name", ["/etc/hostname", "../b/1/model.onnx", "1/../../x", "a\\0b"])
def test_a_config_names_no_file_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "a/1/model.onnx", "b/1/model.onnx")
    (tmp_path / "a" / "config.pbtxt").write_text(f'default_model_filename: "{name}"')
    [a, _] = find_models(tmp_path)
    assert "is not in the model's folder" in a.problem


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf_8_are_a_problem_of_their_model(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    for name in (b"bad\xff", b"good"):
        os.makedirs(os.path.join(root, name, b"1"))
        open(os.path.join(root, name, b"1", b"model.onnx"), "wb").close()
    found = {model.name: model for model in find_models(tmp_path)}
    assert sorted(found) == ["bad\\xff", "good"]
    assert found["bad\\xff"].problem.startswith("the name bad\\xff is not UTF-8: rename")
    assert found["bad\\xff"].versions == {} and not found["good"].problem
