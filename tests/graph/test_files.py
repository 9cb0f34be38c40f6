"""Loading and saving models; nothing is read from outside the model's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.errors import InvalidModel, UnsafeModel, WriteFailed
from onward.graph.builder import OpBuilder
from onward.graph.files import load, save, weight_bytes
from onward.graph.mapped import MappedTensor


def tiny() -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 3))
    w = op.initializer("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    return op.model(y=op.MatMul(x, w))


def save_external(folder: Path, location: str = "w.bin") -> Path:
    """A model whose weight lies in a file next to it; `location` is what the model says."""
    proto = ir.to_proto(tiny())
    (tensor,) = proto.graph.initializer
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def weight(model: ir.Model) -> list[float]:
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy().ravel().tolist()


def test_a_model_loads_from_path_bytes_proto_and_ir(tmp_path: Path) -> None:
    proto = ir.to_proto(tiny())
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    for source in (path, str(path), proto.SerializeToString(), proto, tiny()):
        assert weight(load(source)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("suffix", [".textproto", ".json"])
def test_text_forms_load_too(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    onnx.save(ir.to_proto(tiny()), path)
    assert weight(load(path)) == [0, 1, 2, 3, 4, 5]


def test_external_data_is_mapped_not_read(tmp_path: Path) -> None:
    model = load(save_external(tmp_path))
    assert isinstance(model.graph.initializers["w"].const_value, MappedTensor)
    assert weight(model) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(UnsafeModel, match="external data of 'w' points outside"):
        load(save_external(tmp_path, location))


def test_external_data_behind_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    path = save_external(folder, "link.bin")
    os.symlink(tmp_path / "secret", folder / "link.bin")
    with pytest.raises(UnsafeModel, match="behind a symbolic link"):
        load(path)


def test_external_data_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path, "d")
    (tmp_path / "d").mkdir()
    with pytest.raises(UnsafeModel, match="not an ordinary file"):
        load(path)


def test_missing_and_short_external_data_are_named(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(23))
    with pytest.raises(InvalidModel, match="external data of 'w' ends at byte 24 of a file of 23"):
        load(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InvalidModel, match="external data of 'w' is missing"):
        load(path)


def test_external_data_without_a_folder_is_explained(tmp_path: Path) -> None:
    data = save_external(tmp_path).read_bytes()
    with pytest.raises(InvalidModel, match="came without a folder"):
        load(data)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x00" * 64])
def test_bytes_that_are_not_a_model_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not an ONNX model") as caught:
        load(data)
    assert "\n" not in str(caught.value)


def test_errors_of_a_missing_file_and_of_a_folder_differ(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at .*nowhere\.onnx"):
        load(tmp_path / "nowhere.onnx")
    with pytest.raises(InvalidModel, match="is not a file"):
        load(tmp_path)


def test_other_objects_raise_a_type_error() -> None:
    with pytest.raises(TypeError, match="a model must be a path, bytes"):
        load(42)  # type: ignore[arg-type]
    linear = pytest.importorskip("torch").nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"not Linear\nexport the module first: torch.onnx.export"):
        load(linear)


def test_values_that_nothing_produces_are_named() -> None:
    proto = ir.to_proto(tiny())
    proto.graph.node[0].input[1] = "ghost"
    with pytest.raises(InvalidModel, match=r"\(MatMul\) reads 'ghost', which is not an input"):
        load(proto)
    proto = ir.to_proto(tiny())
    proto.graph.output[0].name = "ghost"
    with pytest.raises(InvalidModel, match="the model's output 'ghost' is not an input"):
        load(proto)


def test_save_then_load_is_identity(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(tiny(), path)
    assert ir.to_proto(load(path)) == ir.to_proto(tiny())
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_link_stays_and_the_file_that_it_names_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    link, target = tmp_path / "m.onnx", tmp_path / "models" / "version"
    target.write_bytes(b"old")
    link.symlink_to("models/version")
    save(tiny(), link)
    assert link.is_symlink() and [each.name for each in target.parent.iterdir()] == ["version"]
    assert ir.to_proto(load(target)) == ir.to_proto(load(link)) == ir.to_proto(tiny())
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", 1)
    with pytest.raises(WriteFailed, match="it is a link, and a model of this size is two files"):
        save(tiny(), link)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "models"]


def test_large_weights_go_to_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", 16)
    op = OpBuilder()
    w = op.initializer("w", np.arange(1000, dtype=np.float32))
    model = op.model(y=op.Mul(op.input("x", "float32", (1000,)), w))
    save(model, tmp_path / "m.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert weight(load(tmp_path / "m.onnx")) == list(range(1000))
    save(load(tmp_path / "m.onnx"), tmp_path / "m.onnx")  # onto the very files it maps
    assert weight(load(tmp_path / "m.onnx")) == list(range(1000))


def save_outside(folder: Path) -> Path:
    """A model whose weights, however small, all lie in one file; an attribute's too."""
    op = OpBuilder()
    x = op.input("x", "float32", (1000,))
    w = op.initializer("w", np.arange(1000, dtype=np.float32))
    y = op.Add(op.Mul(x, w), op.initializer("b", np.ones(1, np.float32)))
    model = op.model(y=op.Sub(y, op.Constant(value=ir.tensor(np.full(1000, 3, np.float32)))))
    path = folder / "m.onnx"
    onnx.save(
        ir.to_proto(model),
        path,
        save_as_external_data=True,
        location="m.onnx.data",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


@pytest.mark.parametrize("most", [16, 1 << 30])
@pytest.mark.parametrize("target", ["copy/c.onnx", "m.onnx"])
def test_a_mapped_model_is_saved_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, most: int
) -> None:
    """Small tensors come into the file, though others view the same mapping."""
    monkeypatch.setattr("onward.graph.files._EMBEDDED_AT_MOST", most)
    (tmp_path / "copy").mkdir()
    model = load(save_outside(tmp_path))
    before = ir.to_proto(model).SerializeToString()
    save(model, tmp_path / target)
    assert ir.to_proto(model).SerializeToString() == before  # nothing of it changed
    assert weight(model) == list(range(1000))
    again = load(tmp_path / target)
    assert weight(again) == list(range(1000))
    assert (tmp_path / f"{target}.data").exists() == (most == 16 or target == "m.onnx")
    [value] = [node.attributes["value"].as_tensor() for node in again.graph if not node.inputs]
    assert value.numpy().tolist() == [3] * 1000
    tensor = again.graph.initializers["b"].const_value
    assert tensor is not None and not isinstance(tensor, MappedTensor)


@pytest.mark.parametrize(("opset", "version"), [(8, 4), (13, 7)])
def test_weights_that_are_not_inputs_need_a_newer_ir_version(
    tmp_path: Path, opset: int, version: int
) -> None:
    model = tiny()
    model.ir_version, model.opset_imports[""] = 3, opset
    save(model, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").ir_version == version
    assert model.ir_version == 3
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    model.graph.inputs.append(model.graph.initializers["w"])
    save(model, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").ir_version == 3


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save(tiny(), path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(ir, "save", full)
    with pytest.raises(OSError, match="no space left"):
        save(tiny(), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_weight_bytes_counts_without_reading(tmp_path: Path) -> None:
    assert weight_bytes(load(save_external(tmp_path))) == 24


def test_a_subgraph_attribute_that_is_not_one_is_an_invalid_model() -> None:
    node = onnx.helper.make_node("If", ["c"], ["y"])
    graph = onnx.AttributeProto.GRAPH
    node.attribute.add(name="then_branch", type=graph, ref_attr_name="elsewhere")
    c = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [c], [y]))
    message = "attribute 'then_branch' refers to the attribute 'elsewhere' of a function"
    with pytest.raises(InvalidModel, match=message):
        load(model)


def test_a_model_that_cannot_be_built_is_an_invalid_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Any) -> Any:
        raise ValueError("two values of one name\nand more")

    monkeypatch.setattr("onward.graph.files.from_proto", failing)
    with pytest.raises(
        InvalidModel, match=r"the model breaks ONNX's rules: two values of one name$"
    ):
        load(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])))
