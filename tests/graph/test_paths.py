"""Paths are checked before the system sees them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.checkpoints import tensor_files
from onward.cli.output_files import write_outputs
from onward.compress import pack
from onward.errors import FileMissing, OnwardError, OptionError, WriteFailed
from onward.graph.paths import check_exists, check_writable, make_folder, to_path, writing
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.runner.data.open_data import open_data
from onward.runner.figures.curves import draw_panels
from onward.runner.figures.save import save_figure
from onward.training.artifacts import generate_artifacts
from tests.sessions.training.small import mlp

X = np.ones(3, np.float32)

LAW = (
    r"a path must be a text without null characters, or a Path, not .*\n"
    "give the name of a file or of"
)
each_bad = pytest.mark.parametrize("bad", ["\0bad", Path("a\0b"), 3, None, b"name"])


def test_texts_and_paths_are_paths() -> None:
    assert to_path("a/b") == to_path(Path("a/b")) == Path("a/b")


@each_bad
def test_other_objects_are_refused_as_paths(bad: Any) -> None:
    with pytest.raises(OptionError, match=LAW):
        to_path(bad)


@each_bad
def test_save_and_load_refuse_other_objects_as_paths(bad: Any) -> None:
    program = onward.compile_training(mlp(), CrossEntropy(), SGD())
    session = onward.TrainingSession(program)
    read_header = tensor_files.read_header
    for call in (session.save, session.load, session.export, program.save, read_header):
        with pytest.raises(OptionError, match=LAW):
            call(bad)
    with pytest.raises(OptionError, match=LAW):
        onward.Checkpoints(bad)


# -- what is not there, and what cannot be written ------------------------------------------------


def test_the_error_of_a_missing_model_suggests_files(tmp_path: Path) -> None:
    onward.save(mlp(), tmp_path / "model.onnx")
    for name, advice in (
        ("modle.onnx", r"did you mean 'model\.onnx'\?"),
        ("zzz.onnx", r"check the path: .* has 'model\.onnx'"),
        ("zzz.bin", "nothing in .* has a name like it: check the path"),
        ("no/model.onnx", "there is no folder .*no: check the path"),
    ):
        for opens in (onward.load, onward.InferenceSession):
            with pytest.raises(FileMissing, match=rf"no model at .*{name}\n{advice}") as caught:
                opens(tmp_path / name)
            assert isinstance(caught.value, FileNotFoundError)


def writers() -> dict[str, Callable[[Path], object]]:
    """What writes a file, or a folder, for a user; those that make the folder end with a slash."""
    program = onward.compile_training(mlp(), CrossEntropy(), SGD())
    session = onward.TrainingSession(program)
    grown = onward.gradient(mlp(), {"logits": "dlogits"}, ["w1"])
    options = {"loss": CrossEntropy(), "requires_grad": ["w1"]}
    return {
        "save": lambda path: onward.save(grown, path),
        "export": session.export,
        "checkpoint": session.save,
        "program/": program.save,
        "artifacts/": lambda path: generate_artifacts(mlp(), artifact_directory=path, **options),
        "outputs": lambda path: write_outputs(path.with_suffix(".npz"), {"y": X}, one=False),
        "output": lambda path: write_outputs(path.with_suffix(".npy"), {"y": X}, one=True),
        "text": lambda path: write_outputs(path.with_suffix(".json"), {"y": X}, one=True),
        "picture": lambda path: save_figure(draw_panels([]), path.with_suffix(".svg")),
    }


def test_write_errors_have_the_users_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.chdir(tmp_path)
    for name, write in writers().items():
        for target, why in (
            ("missing/deep/target", "there is no folder missing/deep"),
            ("file/target", "file is not a folder"),
        ):
            if name.endswith("/") and "missing" in target:
                continue
            with pytest.raises(OnwardError) as caught:
                write(Path(target))
            first, second = str(caught.value).splitlines()
            assert first.startswith(target), (name, first)
            assert ".onward-" not in first, (name, first)
            if name != "checkpoint":
                assert isinstance(caught.value, WriteFailed) and caught.value.errno, name
                assert f"cannot be written: {why}" in first and second, (name, first)
    assert sorted(os.listdir(tmp_path)) == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "let this process write in {}, or write to another folder"),
        (errno.EROFS, "let this process write in {}, or write to another folder"),
        (errno.ENOSPC, "make room on the disk of {}, or write to another folder"),
        (errno.EIO, "check the disk of {}, or write to another folder"),
    ],
)
def test_the_advice_depends_on_the_systems_error(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(WriteFailed) as caught, writing(tmp_path / "m.onnx"):
        raise OSError(number, os.strerror(number), "/tmp/.onward-abc/m.onnx")
    line = f"{tmp_path / 'm.onnx'} cannot be written: {os.strerror(number)}"
    assert str(caught.value) == f"{line}\n{advice.format(tmp_path)}"
    assert caught.value.errno == number


def test_the_error_of_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".onward-abc"))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(
        WriteFailed, match=r"m\.onnx cannot be written: Permission denied\nlet this"
    ):
        onward.save(mlp(), tmp_path / "m.onnx")


def test_the_error_of_a_folder_or_file_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match=r"cannot be written: it is a folder\ngive the name of a"):
        onward.save(mlp(), tmp_path)
    with pytest.raises(WriteFailed, match="it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "there").write_text("")
    with pytest.raises(FileExistsError, match=r"there is a file of that name\nremove it, or"):
        make_folder(tmp_path / "there")
    check_writable(tmp_path / "new")
    assert os.listdir(tmp_path) == ["there"]


LONG = "x" * 300 + ".onnx"


def test_a_text_that_cannot_name_a_file_is_refused() -> None:
    with pytest.raises(OptionError, match=r"a text that can name a file, not 'a.ud800'\ngive"):
        to_path("a\ud800")


@pytest.mark.parametrize("read", [onward.load, onward.InferenceSession, open_data])
def test_a_name_that_is_too_long_is_one_clear_error(read: Callable[[str], Any]) -> None:
    with pytest.raises(
        FileMissing, match=r"x.onnx cannot be read: File name too long\ncheck the path"
    ):
        read(LONG)


def test_a_model_is_not_saved_under_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match=r"File name too long\ngive a shorter name"):
        onward.save(mlp(), tmp_path / LONG)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_searched_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(
        FileMissing, match=r"cannot be read: Permission denied\nlet this process read"
    ):
        check_exists(tmp_path / "model.onnx", "model")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to("gone.onnx")
    with pytest.raises(FileMissing, match=r"it is a link to gone.onnx, which is not there"):
        onward.load(tmp_path / "model.onnx")


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe, model = tmp_path / "model.onnx", tmp_path / "other.onnx"
    os.mkfifo(pipe)
    onward.save(mlp(), model)
    law = (
        "model.onnx cannot be written: it is a device, a pipe or a socket\ngive the name of a file"
    )
    with pytest.raises(WriteFailed, match=law):
        onward.save(mlp(), pipe)
    with pytest.raises(WriteFailed, match=law):
        pack(model, pipe, overwrite=True)
    assert pipe.is_fifo()


def test_a_link_into_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    link = tmp_path / "m.onnx"
    link.symlink_to(tmp_path / "missing" / "m.onnx")
    with pytest.raises(WriteFailed, match=r"there is no folder .*missing"):
        check_writable(link)
