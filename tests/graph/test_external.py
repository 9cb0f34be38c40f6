"""External data is read from inside the model's folder alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from onward.errors import InvalidModel, UnsafeModel
from onward.graph import external
from onward.graph.external import open_inside
from onward.graph.files import load, save
from tests.graph.test_files import save_external, weight


def given(path: Path, **entries: object) -> Path:
    """The model at this path, with another location of its weight."""
    proto = onnx.load(path, load_external_data=False)
    (tensor,) = proto.graph.initializer
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())
    return path


def test_data_in_a_folder_below_is_read(tmp_path: Path) -> None:
    path = save_external(tmp_path, "sub/w.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "w.bin").rename(tmp_path / "sub" / "w.bin")
    assert weight(load(path)) == [0, 1, 2, 3, 4, 5]


def test_links_are_refused_even_inside_the_folder(tmp_path: Path) -> None:
    path = save_external(tmp_path, "link.bin")
    os.symlink("w.bin", tmp_path / "link.bin")
    with pytest.raises(UnsafeModel, match=r"behind a symbolic link: 'link\.bin'\ncopy the file"):
        load(path)
    path = save_external(tmp_path, "link/w.bin")
    os.symlink(tmp_path, tmp_path / "link")
    with pytest.raises(UnsafeModel, match=r"behind a symbolic link: 'link/w\.bin'"):
        load(path)


def test_a_link_to_the_models_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    save_external(tmp_path / "real")
    os.symlink("real", tmp_path / "link")
    assert weight(load(tmp_path / "link" / "model.onnx")) == [0, 1, 2, 3, 4, 5]


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    os.link(tmp_path / "w.bin", tmp_path / "other")
    with pytest.raises(UnsafeModel, match=r"has 2 names \(hard links\): 'w\.bin'"):
        load(path)


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    path = save_external(tmp_path, "pipe")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeModel, match="not an ordinary file: 'pipe'"):
        load(path)
    with pytest.raises(InvalidModel, match="is not a file"):
        load(tmp_path / "pipe")


@pytest.mark.parametrize("location", ["..\\w.bin", "C:\\w.bin", "\\\\host\\w.bin"])
def test_paths_of_other_systems_are_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(UnsafeModel, match="points outside the model's folder"):
        load(save_external(tmp_path, location))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": -4}, "has offset -4 and length 0: neither may be negative"),
        ({"length": -1}, "has offset 0 and length -1: neither may be negative"),
        ({"offset": "x"}, "its offset 'x' is not a whole number"),
        ({"offset": 4}, "ends at byte 28 of a file of 24"),
        ({"length": 1 << 62}, "of a file of 24"),
        ({"length": 20}, "has 20 bytes and needs 24"),
    ],
)
def test_invalid_ranges_are_named(tmp_path: Path, entries: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        load(given(save_external(tmp_path), **entries))


def test_text_cannot_be_external(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].data_type = TensorProto.STRING
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match=r"STRING, and text cannot be external data\nstore"):
        load(path)


def test_the_checked_file_is_the_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is swapped for a link right after it was looked at is not followed."""
    (tmp_path / "secret").write_bytes(bytes(24))
    path = save_external(tmp_path)
    look = os.stat

    def swap(name: str, **how: object) -> os.stat_result:
        status = look(name, **how)  # type: ignore[arg-type]
        if name == "w.bin":
            (tmp_path / "w.bin").unlink()
            os.symlink(tmp_path / "secret", tmp_path / "w.bin")
        return status

    monkeypatch.setattr(external.os, "stat", swap)
    with pytest.raises(InvalidModel, match="cannot be opened"):
        load(path)


def test_mapped_data_survives_replacing_the_file(tmp_path: Path) -> None:
    model = load(save_external(tmp_path))
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").write_bytes(np.full(6, 7, np.float32).tobytes())
    assert weight(model) == [0, 1, 2, 3, 4, 5]


def test_external_data_of_attributes_and_of_packed_types_is_read(tmp_path: Path) -> None:
    def outside(name: str, kind: int, shape: list[int], data: bytes) -> TensorProto:
        (tmp_path / f"{name}.bin").write_bytes(data)
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{name}.bin")
        return tensor

    half = outside("h", TensorProto.BFLOAT16, [2], np.ones(2, ml_dtypes.bfloat16).tobytes())
    four = outside("f", TensorProto.INT4, [3], b"\x21\x03")
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=half)],
        "g",
        [],
        [helper.make_tensor_value_info("c", TensorProto.BFLOAT16, [2])],
        [four],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    model = load(path)
    tensor = model.graph.initializers["f"].const_value
    assert tensor is not None
    assert tensor.numpy().tolist() == [1, 2, 3]
    constant = model.graph[0].attributes["value"].as_tensor()
    assert constant.numpy().astype(np.float32).tolist() == [1, 1]


def test_a_model_with_external_data_runs_and_saves(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    x = np.ones((1, 3), np.float32)
    (y,) = onward.InferenceSession(path).run(None, {"x": x})
    assert y.tolist() == [[6, 9]]
    save(load(path), tmp_path / "copy.onnx")
    assert weight(load(tmp_path / "copy.onnx")) == [0, 1, 2, 3, 4, 5]


def test_opened_files_are_closed_again(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for location in ("w.bin", "nowhere", "../w.bin"):
        with contextlib.suppress(UnsafeModel, InvalidModel):
            os.close(open_inside(path.parent, location, "data"))
    assert not before or len(os.listdir("/proc/self/fd")) == before
