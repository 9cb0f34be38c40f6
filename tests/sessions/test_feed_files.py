"""Feeds from files: every form that is read, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onward.errors import FeedError, OptionError
from onward.graph.files import save
from onward.graph.signature import NodeArg
from onward.sessions.feed_files import inputs_of, read_feeds
from tests.models import mlp

X = NodeArg("x", "tensor(float)", ["batch", 4])
IDS = NodeArg("ids", "tensor(int64)", ["batch", None])
WORD = NodeArg("word", "tensor(string)", [2])


def array(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_a_npy_file_feeds_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array(2, 4))
    for text in (f"{tmp_path}/a.npy", f"x={tmp_path}/a.npy", f"x=@{tmp_path}/a.npy"):
        assert np.array_equal(read_feeds([X], [text])["x"], array(2, 4))


def test_a_npz_file_feeds_by_name(tmp_path: Path) -> None:
    ids = np.ones((2, 3), np.int64)
    np.savez(tmp_path / "f.npz", ids=ids, x=array(2, 4))
    feeds = read_feeds([X, IDS], [f"{tmp_path}/f.npz"])
    assert list(feeds) == ["x", "ids"] and np.array_equal(feeds["ids"], ids)


def test_unnamed_arrays_of_savez_are_fed_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", array(2, 4), np.ones((2, 3), np.int64))
    assert read_feeds([X, IDS], [f"{tmp_path}/f.npz"])["ids"].shape == (2, 3)


def test_one_tensor_of_a_npz_file_can_be_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=array(1, 4), other=array(3))
    assert read_feeds([X], [f"x={tmp_path}/f.npz"])["x"].shape == (1, 4)


def test_json_becomes_the_declared_type(tmp_path: Path) -> None:
    feeds = read_feeds(
        [X, IDS, WORD],
        [write(tmp_path / "f.json", {"x": [[1, 2, 3, 4]], "ids": [[7]], "word": ["a", "b"]})],
    )
    assert feeds["x"].dtype == np.float32 and feeds["ids"].dtype == np.int64
    assert feeds["word"].tolist() == ["a", "b"] and feeds["word"].dtype == np.object_
    only = read_feeds([X], [write(tmp_path / "g.json", [[1, 2, 3, 4]])])
    assert only["x"].tolist() == [[1, 2, 3, 4]]


def test_onnx_test_data_is_read(tmp_path: Path) -> None:
    tensor = onnx.numpy_helper.from_array(array(2, 4), "x")
    (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
    assert read_feeds([X], [f"{tmp_path}/input_0.pb"])["x"].shape == (2, 4)


def test_inputs_without_a_file_are_random_with_matching_sizes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array(3, 4))
    feeds = read_feeds([X, IDS], [f"x={tmp_path}/a.npy"], {"ids:1": 5})
    assert feeds["ids"].shape == (3, 5)


def test_random_feeds_take_their_sizes_and_repeat_with_the_seed() -> None:
    a, b = (read_feeds([X], [], {"batch": 8}, seed=3)["x"] for _ in range(2))
    assert a.shape == (8, 4) and np.array_equal(a, b)
    assert not np.array_equal(a, read_feeds([X], [], {"batch": 8}, seed=4)["x"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"y": [1]}, r"feeds 'y'; the model takes 'x'"),
        ({"x": [[1, 2], [3]]}, "was given lists of different lengths"),
        ({"x": [["a", "b", "c", "d"]]}, "but was given a str"),
        ({"x": [[1, 2, 3]]}, r"takes shape \(batch, 4\), but was given \(1, 3\)"),
        ({"x": None}, "but was given None"),
        ("text", "but was given a str"),
        (3, r"takes shape \(batch, 4\), but was given \(\)"),
    ],
)
def test_json_of_another_form_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(FeedError, match=message):
        read_feeds([X], [write(tmp_path / "f.json", content)])


def test_a_number_that_the_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    for value in (1.5, 2**70):
        with pytest.raises(FeedError, match="cannot hold"):
            read_feeds([IDS], [write(tmp_path / "f.json", [[value]])])
    with pytest.raises(FeedError, match="but was given an int64"):
        read_feeds([WORD], [write(tmp_path / "f.json", [1, 2])])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.json", b"{", "is not JSON"),
        ("f.npy", b"no", "not a numpy file"),
        ("f.npz", b"PK\x03\x04 no", "not a numpy file"),
        ("f.pb", b"\xff\xff\xff", "not an ONNX tensor"),
        ("f.txt", b"1 2", "unknown kind of file"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FeedError, match=message):
        read_feeds([X], [str(tmp_path / name)])


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(FeedError, match="plain arrays"):
        read_feeds([X], [f"{tmp_path}/p.npy"])


def test_wrong_names_types_and_shapes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array(2, 4))
    np.save(tmp_path / "d.npy", array(2, 4).astype(np.float64))
    np.save(tmp_path / "s.npy", array(2, 5))
    for text, message in (
        (f"z={tmp_path}/a.npy", r"no input 'z'; the model takes 'x'"),
        (f"x={tmp_path}/d.npy", r"takes tensor\(float\), but was given tensor\(double\)"),
        (f"x={tmp_path}/s.npy", "dimension 1 is 5"),
        (f"x={tmp_path}", "is a folder"),
    ):
        with pytest.raises(FeedError, match=message):
            read_feeds([X], [text])
    with pytest.raises(FileNotFoundError, match="no feeds file at"):
        read_feeds([X], [f"x={tmp_path}/none.npy"])
    with pytest.raises(FeedError, match=r"name the input: NAME="):
        read_feeds([X, IDS], [f"{tmp_path}/a.npy"])
    with pytest.raises(FeedError, match="is fed twice"):
        read_feeds([X], [f"x={tmp_path}/a.npy", f"x={tmp_path}/a.npy"])


def test_sizes_are_checked(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array(2, 4))
    with pytest.raises(OptionError, match=r"no dynamic dimension 'bach'\ndid you mean 'batch'"):
        read_feeds([X], [], {"bach": 2})
    with pytest.raises(FeedError, match="dimension 'batch' is 2 in the feeds, but 3 by --size"):
        read_feeds([X], [f"{tmp_path}/a.npy"], {"batch": 3})


def test_without_random_a_missing_input_is_an_error() -> None:
    with pytest.raises(FeedError, match=r"input 'ids' is missing.*\(batch, \?\)\n.*--random"):
        read_feeds([IDS], [], random=False)


def test_inputs_are_those_of_the_file(tmp_path: Path) -> None:
    save(mlp(), tmp_path / "m.onnx")
    assert inputs_of(tmp_path / "m.onnx") == [NodeArg("x", "tensor(float)", ["batch", 4])]
