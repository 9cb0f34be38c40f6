"""pack and unpack: the same files come back, damage is found, bad input is one line."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.compress import pack, unpack
from onward.compress.packing import unpack as unpack_module
from onward.compress.packing import writer
from onward.compress.packing.writer import PackedWriter
from onward.errors import FileExists, FileMissing, InvalidModel, UnsafeModel, WriteFailed
from onward.graph.packed.container import open_packed
from onward.graph.packed.packed_tensor import PackedTensor

Array = np.ndarray[Any, Any]


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.1


def model_proto(*, tied: bool = False, in_branch: bool = False) -> onnx.ModelProto:
    """y = (x w) v, with v equal to w if they are tied."""
    w, v = weights(64, 64), weights(64, 64, seed=0 if tied else 1)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="first")]
    if in_branch:
        constant = helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(v))
        product = helper.make_node("MatMul", ["h", "v"], ["b"])
        out = helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 64])
        then = helper.make_graph([constant, product], "then", [], [out])
        same = helper.make_graph([helper.make_node("Identity", ["h"], ["b2"])], "else", [], [
            helper.make_tensor_value_info("b2", TensorProto.FLOAT, ["n", 64])])  # fmt: skip
        flag = helper.make_node("Constant", [], ["flag"], value=numpy_helper.from_array(np.True_))
        nodes += [flag, helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=same)]
    else:
        nodes.append(helper.make_node("MatMul", ["h", "v"], ["y"], name="second"))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(w, "w")]
        + ([] if in_branch else [numpy_helper.from_array(v, "v")]),
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model_proto(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(model: Any) -> Array:
    [y] = onward.InferenceSession(model).run(None, {"x": weights(2, 64, seed=9)})
    return np.asarray(y)


def test_unpacked_file_equals_the_original(path: Path) -> None:
    before = digest(path)
    packed = pack(path)
    assert packed.path == path.with_suffix(".onnxpack") and packed.tensors == 2
    assert packed.after == packed.path.stat().st_size < packed.before == path.stat().st_size
    again = unpack(packed.path, path.parent / "again.onnx", verify=True)
    assert digest(again) == digest(path) == before


def test_same_model_same_bytes(path: Path, tmp_path: Path) -> None:
    pack(path, tmp_path / "a.onnxpack")
    pack(path, tmp_path / "b.onnxpack")
    assert digest(tmp_path / "a.onnxpack") == digest(tmp_path / "b.onnxpack")


def test_load_reads_packed_tensors_when_they_are_needed(path: Path) -> None:
    pack(path)
    model = onward.load(path.with_suffix(".onnxpack"))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, PackedTensor) and "w" in repr(tensor)
    array = tensor.numpy()
    assert np.array_equal(array, weights(64, 64)) and not array.flags.writeable
    assert tensor.tobytes() == weights(64, 64).tobytes()
    assert tensor.nbytes == 64 * 64 * 4 and np.asarray(tensor).shape == (64, 64)


@pytest.mark.parametrize("name", ["model.onnxpack", "renamed.onnx", "without_suffix"])
def test_sessions_run_packed_models_whatever_their_name(path: Path, name: str) -> None:
    target = path.parent / name
    pack(path, target)
    assert np.array_equal(run(target), run(path))
    assert np.array_equal(run(target.read_bytes()), run(path))


def test_saved_packed_model_has_its_weights(path: Path, tmp_path: Path) -> None:
    pack(path)
    onward.save(onward.load(path.with_suffix(".onnxpack")), tmp_path / "copy.onnx")
    assert np.array_equal(run(tmp_path / "copy.onnx"), run(path))


def test_equal_tensors_are_stored_once(tmp_path: Path) -> None:
    onnx.save(model_proto(tied=True), tmp_path / "tied.onnx")
    onnx.save(model_proto(), tmp_path / "two.onnx")
    tied, two = pack(tmp_path / "tied.onnx"), pack(tmp_path / "two.onnx")
    assert (tied.shared, two.shared) == (1, 0) and tied.after < 0.6 * two.after
    assert digest(unpack(tied.path, tmp_path / "t.onnx")) == digest(tmp_path / "tied.onnx")


def test_constants_in_branches_are_packed(tmp_path: Path) -> None:
    onnx.save(model_proto(in_branch=True), tmp_path / "branch.onnx")
    packed = pack(tmp_path / "branch.onnx")
    assert packed.tensors == 2
    assert np.array_equal(run(packed.path), run(tmp_path / "branch.onnx"))
    assert digest(unpack(packed.path, tmp_path / "b.onnx")) == digest(tmp_path / "branch.onnx")


def test_external_data_comes_back_under_its_name(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir(), other.mkdir()
    onnx.save(model_proto(), folder / "m.onnx", save_as_external_data=True, location="m.data",
              size_threshold=0)  # fmt: skip
    packed = pack(folder / "m.onnx")
    assert packed.before == sum((folder / name).stat().st_size for name in ("m.onnx", "m.data"))
    unpack(packed.path, other / "m.onnx")
    for name in ("m.onnx", "m.data"):
        assert digest(other / name) == digest(folder / name)
    with pytest.raises(FileExists, match=r"m\.data cannot be written"):
        unpack(packed.path, other / "n.onnx")


def test_external_data_is_not_written_outside_the_folder(tmp_path: Path) -> None:
    with (tmp_path / "m.onnxpack").open("wb") as file:
        PackedWriter(file).finish(model_proto().SerializeToString(), [], {"../outside.data": 1})
    with pytest.raises(UnsafeModel, match="outside the model's folder"):
        unpack(tmp_path / "m.onnxpack")
    assert os.listdir(tmp_path) == ["m.onnxpack"]


@pytest.mark.parametrize("field", ["float_data", "double_data"])
def test_typed_fields_come_back(tmp_path: Path, field: str) -> None:
    kind = TensorProto.FLOAT if field == "float_data" else TensorProto.DOUBLE
    tensor = helper.make_tensor("w", kind, [32, 32], weights(32, 32).reshape(-1).tolist())
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])], "g", [],
        [helper.make_tensor_value_info("y", kind, [32, 32])], [tensor],
    )  # fmt: skip
    path = tmp_path / "typed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    packed = pack(path)
    assert packed.tensors == 1
    assert digest(unpack(packed.path, tmp_path / "u.onnx")) == digest(path)


def test_models_whose_external_data_onnx_has_read_come_back(tmp_path: Path) -> None:
    """onnx sets data_location of these tensors to its default, which takes 2 bytes each."""
    onnx.save(model_proto(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data",
              size_threshold=0)  # fmt: skip
    onnx.save(onnx.load(tmp_path / "m.onnx"), tmp_path / "whole.onnx")
    packed = pack(tmp_path / "whole.onnx")
    assert packed.tensors == 2
    assert digest(unpack(packed.path, tmp_path / "u.onnx")) == digest(tmp_path / "whole.onnx")


@pytest.mark.parametrize("kind", [bytes, Path])
def test_files_of_other_writers_come_back(tmp_path: Path, kind: type[Any]) -> None:
    """Protobuf would write this model in other bytes: its graph stands before its version."""
    whole = model_proto()
    rest = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import)
    data = onnx.ModelProto(graph=whole.graph).SerializeToString() + rest.SerializeToString()
    assert data != whole.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    packed = pack(data if kind is bytes else tmp_path / "m.onnx", tmp_path / "m.onnxpack")
    assert np.array_equal(run(packed.path), run(whole)) and packed.after < packed.before
    assert unpack(packed.path, tmp_path / "u.onnx", verify=True).read_bytes() == data


def test_message_in_memory_is_not_changed(tmp_path: Path) -> None:
    proto = model_proto()
    pack(proto, tmp_path / "m.onnxpack")
    assert proto == model_proto()


@pytest.mark.parametrize("make", [lambda p: p, lambda p: p.SerializeToString(), ir.from_proto])
def test_models_in_memory_are_packed(make: Callable[[Any], Any], tmp_path: Path) -> None:
    packed = pack(make(model_proto()), tmp_path / "m.onnxpack")
    assert packed.tensors == 2 and np.array_equal(run(packed.path), run(model_proto()))


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    small = helper.make_graph(
        [helper.make_node("Mul", ["x", "weight"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [300])],
        [numpy_helper.from_array(weights(300), "weight")],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(small, opset_imports=[helper.make_opsetid("", 17)]), path)
    whole = pack(path).path.read_bytes()
    file = open_packed(path.with_suffix(".onnxpack"))
    (block,) = file.tensors
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(InvalidModel) as error:
            onward.load(bytes(damaged)).graph.initializers["weight"].const_value.numpy()
        if block.begin <= place < block.begin + block.length:
            assert "tensor 'weight'" in str(error.value)


@pytest.mark.parametrize("share", [0, 4, 20, 0.5, -1])
def test_truncated_files_are_refused(path: Path, share: float) -> None:
    whole = pack(path).path.read_bytes()
    length = int(len(whole) * share) if 0 < share < 1 else int(share)
    path.with_suffix(".onnxpack").write_bytes(whole[:length])
    with pytest.raises(InvalidModel, match=r"damaged|not a packed model"):
        unpack(path.with_suffix(".onnxpack"), path.parent / "u.onnx")
    assert not (path.parent / "u.onnx").exists()


def test_newer_versions_are_refused(path: Path) -> None:
    whole = bytearray(pack(path).path.read_bytes())
    whole[8:12] = struct.pack("<I", 99)
    whole[32:36] = struct.pack("<I", zlib.crc32(bytes(whole[:32])))
    with pytest.raises(InvalidModel, match="version 99"):
        onward.load(bytes(whole))


def test_bad_input_is_refused(path: Path) -> None:
    with pytest.raises(FileMissing, match="no model"):
        pack(path.parent / "missing.onnx")
    with pytest.raises(FileMissing, match="no model"):
        unpack(path.parent / "missing.onnxpack")
    with pytest.raises(InvalidModel, match="not a packed model"):
        unpack(path, path.parent / "u.onnx")
    with pytest.raises(InvalidModel, match="give the path"):
        pack(model_proto())
    packed = pack(path).path
    with pytest.raises(InvalidModel, match="packed already"):
        pack(packed, path.parent / "twice.onnxpack")
    with pytest.raises(FileExists, match="there is a file of that name"):
        pack(path)
    with pytest.raises(FileExists, match="there is a file of that name"):
        unpack(packed)
    assert pack(path, overwrite=True).tensors == 2
    with pytest.raises(WriteFailed, match="there is no folder"):
        pack(path, path.parent / "no" / "folder.onnxpack")


def test_full_disk_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "deflate_best", full)
    before = digest(path)
    with pytest.raises(WriteFailed, match="make room on the disk"):
        pack(path)
    assert os.listdir(path.parent) == ["model.onnx"] and digest(path) == before
    assert not path.with_suffix(".onnxpack").exists()


def test_progress_is_called_for_each_tensor(path: Path) -> None:
    steps: list[tuple[str, float, float | None]] = []
    pack(path, progress=lambda *step: steps.append(step))
    assert steps == [("packing w", 0, 2), ("packing v", 1, 2)]


def test_other_sha256_is_found_by_verify(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(path).path
    real = unpack_module.open_packed

    def changed(source: Path) -> Any:
        file = real(source)
        file.tensors[0].__dict__["sha256"] = "0" * 64
        return file

    monkeypatch.setattr(unpack_module, "open_packed", changed)
    with pytest.raises(InvalidModel, match="SHA-256 of tensor 'w' differs"):
        unpack(packed, path.parent / "u.onnx", verify=True)


def test_links_stay_and_the_files_that_they_name_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4,))
    onward.save(op.model(y=op.Add(x, np.ones(4, np.float32))), tmp_path / "model.onnx")
    for name in ("packed", "again"):
        (tmp_path / f"{name}.onnxpack").symlink_to(tmp_path / "files" / name)
    pack(tmp_path / "model.onnx", tmp_path / "packed.onnxpack")
    unpack(tmp_path / "packed.onnxpack", tmp_path / "again.onnxpack")
    assert all((tmp_path / f"{name}.onnxpack").is_symlink() for name in ("packed", "again"))
    assert sorted(each.name for each in (tmp_path / "files").iterdir()) == ["again", "packed"]
    assert (tmp_path / "files" / "again").read_bytes() == (tmp_path / "model.onnx").read_bytes()
