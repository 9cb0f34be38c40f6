"""Malicious models: each a short builder, with the error that must refuse it.

A builder gets an empty folder and returns what to open: a path, bytes, or (model, weights).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Builder = Callable[[Path], Any]
CASES: dict[str, tuple[Builder, str, str]] = {}  # name: builder, class of the error, its words

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
HUGE = 1 << 40


def case(error: str, words: str) -> Callable[[Builder], Builder]:
    """Register a builder in the table."""

    def enter(build: Builder) -> Builder:
        CASES[build.__name__.replace("_", " ")] = (build, error, words)
        return build

    return enter


# -- helpers to build models -----------------------------------------------------------------------


def info(name: str, shape: Any = (2,), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **rest: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, f"{op}_of_{outputs[0]}", **rest)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def ones(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 20,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", inputs or [info("x")], outputs or [info("y", None)], initializers
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def written(proto: onnx.ModelProto) -> bytes:
    return bytes(proto.SerializeToString())


def folded(nodes: Sequence[onnx.NodeProto], *constants: onnx.TensorProto, **rest: Any) -> bytes:
    """A model that adds the largest element of `big`, which depends only on constants."""
    tail = [
        node("ReduceMax", ["big"], ["most"], keepdims=0),
        node("Cast", ["most"], ["number"], to=FLOAT),
        node("Add", ["x", "number"], ["y"]),
    ]
    return written(model([*nodes, *tail], constants, **rest))


def called(body: list[onnx.NodeProto], *more: onnx.FunctionProto) -> bytes:
    """A model that calls a function F with this body."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    own = helper.make_function("own", "F", ["a"], ["b"], body, imports)
    call = node("F", ["x"], ["y"], domain="own")
    return written(model([call], functions=[own, *more], domains=["own"]))


def outside(location: str, *, shape: Sequence[int] = (2,), **entries: int | str) -> TensorProto:
    """A weight `w` whose data lies at a location."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def weighted(folder: Path, tensor: TensorProto) -> Path:
    """A model with that weight, in a separate folder."""
    home = folder / "model"
    home.mkdir(exist_ok=True)
    path = home / "model.onnx"
    path.write_bytes(written(model([node("Add", ["x", "w"], ["y"])], [tensor])))
    return path


def secret(folder: Path) -> Path:
    path = folder / "secret.bin"
    path.write_bytes(bytes(8))
    return path


# -- external data outside of the folder -----------------------------------------------------------


@case("UnsafeModel", "points outside the model's folder")
def external_data_in_the_folder_above(folder: Path) -> Any:
    secret(folder)
    return weighted(folder, outside("../secret.bin"))


@case("UnsafeModel", "points outside the model's folder")
def external_data_in_and_out_again(folder: Path) -> Any:
    secret(folder)
    return weighted(folder, outside("a/../../secret.bin"))


@case("UnsafeModel", "points outside the model's folder")
def external_data_at_an_absolute_path(folder: Path) -> Any:
    return weighted(folder, outside(str(secret(folder))))


@case("UnsafeModel", "points outside the model's folder")
def external_data_with_backslashes(folder: Path) -> Any:
    return weighted(folder, outside("..\\secret.bin"))


@case("UnsafeModel", "behind a symbolic link")
def external_data_behind_a_link_to_a_file(folder: Path) -> Any:
    path = weighted(folder, outside("link.bin"))
    os.symlink(secret(folder), path.parent / "link.bin")
    return path


@case("UnsafeModel", "behind a symbolic link")
def external_data_behind_a_link_to_a_folder(folder: Path) -> Any:
    path = weighted(folder, outside("link/secret.bin"))
    secret(folder)
    os.symlink(folder, path.parent / "link")
    return path


@case("UnsafeModel", "behind a symbolic link")
def external_data_behind_a_link_inside_the_folder(folder: Path) -> Any:
    path = weighted(folder, outside("link.bin"))
    (path.parent / "w.bin").write_bytes(bytes(8))
    os.symlink("w.bin", path.parent / "link.bin")
    return path


@case("UnsafeModel", "hard links")
def external_data_that_is_a_hard_link(folder: Path) -> Any:
    path = weighted(folder, outside("w.bin"))
    os.link(secret(folder), path.parent / "w.bin")
    return path


@case("UnsafeModel", "behind a symbolic link")
def external_data_in_a_device_behind_a_link(folder: Path) -> Any:
    path = weighted(folder, outside("zero"))
    os.symlink("/dev/zero", path.parent / "zero")
    return path


@case("UnsafeModel", "points outside the model's folder")
def external_data_in_a_device(folder: Path) -> Any:
    return weighted(folder, outside("/dev/zero", length=8))


@case("UnsafeModel", "not an ordinary file")
def external_data_in_a_fifo(folder: Path) -> Any:
    path = weighted(folder, outside("pipe"))
    os.mkfifo(path.parent / "pipe")
    return path


@case("UnsafeModel", "not an ordinary file")
def external_data_in_a_folder(folder: Path) -> Any:
    path = weighted(folder, outside("sub"))
    (path.parent / "sub").mkdir()
    return path


@case("InvalidModel", "is missing")
def external_data_that_is_not_there(folder: Path) -> Any:
    return weighted(folder, outside("nowhere.bin"))


@case("InvalidModel", "its location is not a file name")
def external_data_without_a_place(folder: Path) -> Any:
    return weighted(folder, outside(""))


@case("InvalidModel", "its location is not a file name")
def external_data_with_a_zero_in_its_name(folder: Path) -> Any:
    return weighted(folder, outside("w.bin\0.txt"))


@case("InvalidModel", "ends at byte")
def external_data_beyond_its_file(folder: Path) -> Any:
    path = weighted(folder, outside("w.bin", offset=4, length=8))
    (path.parent / "w.bin").write_bytes(bytes(8))
    return path


@case("InvalidModel", "neither may be negative")
def external_data_at_a_negative_offset(folder: Path) -> Any:
    path = weighted(folder, outside("w.bin", offset=-8, length=8))
    (path.parent / "w.bin").write_bytes(bytes(8))
    return path


@case("InvalidModel", "ends at byte")
def external_data_of_a_huge_length(folder: Path) -> Any:
    path = weighted(folder, outside("w.bin", offset=0, length=1 << 62))
    (path.parent / "w.bin").write_bytes(bytes(8))
    return path


@case("InvalidModel", "ends at byte")
def external_data_whose_end_overflows(folder: Path) -> Any:
    path = weighted(folder, outside("w.bin", offset=(1 << 63) - 4, length=8))
    (path.parent / "w.bin").write_bytes(bytes(8))
    return path


@case("InvalidModel", "its offset 'many' is not a whole number")
def external_data_at_an_offset_that_is_no_number(folder: Path) -> Any:
    return weighted(folder, outside("w.bin", offset="many"))


@case("InvalidModel", "came without a folder")
def external_data_of_a_model_in_memory(folder: Path) -> Any:
    return weighted(folder, outside("w.bin")).read_bytes()


@case("UnsafeModel", "points outside the model's folder")
def external_data_of_an_attribute(folder: Path) -> Any:
    secret(folder)
    constant = node("Constant", [], ["c"], value=outside("../secret.bin"))
    path = weighted(folder, ones("w", 2))
    path.write_bytes(written(model([constant, node("Add", ["x", "c"], ["y"])])))
    return path


@case("UnsafeModel", "points outside the model's folder")
def external_data_of_a_subgraph(folder: Path) -> Any:
    secret(folder)
    path = weighted(folder, ones("w", 2))
    inner = helper.make_graph(
        [node("Identity", ["w"], ["r"])], "inner", [], [info("r")], [outside("../secret.bin")]
    )
    choice = node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    inputs = [info("x"), info("c", (), TensorProto.BOOL)]
    path.write_bytes(written(model([choice], inputs=inputs)))
    return path


@case("UnsafeModel", "points outside the model's folder")
def external_data_of_a_function(folder: Path) -> Any:
    secret(folder)
    path = weighted(folder, ones("w", 2))
    body = [node("Constant", [], ["c"], value=outside("../secret.bin")), node("Add", "ac", "b")]
    imports = [helper.make_opsetid("", 20)]
    own = helper.make_function("own", "F", ["a"], ["b"], body, imports)
    call = node("F", ["x"], ["y"], domain="own")
    path.write_bytes(written(model([call], functions=[own], domains=["own"])))
    return path


@case("UnsafeModel", "in a sparse tensor, where no engine reads it")
def external_data_of_a_sparse_tensor(folder: Path) -> Any:
    path = weighted(folder, ones("w", 2))
    proto = onnx.load(path)
    sparse = proto.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(outside("../secret.bin", shape=[1]))
    sparse.indices.CopyFrom(ints("i", 0))
    path.write_bytes(written(proto))
    return path


# -- shapes and sizes that cannot be ---------------------------------------------------------------


@case("LimitExceeded", "ModelLimits.elements")
def an_input_of_a_monstrous_shape(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["y"])], inputs=[info("x", (1 << 62,))]))


@case("LimitExceeded", "ModelLimits.elements")
def an_input_whose_size_overflows(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["y"])], inputs=[info("x", (1 << 32, 1 << 32, 2))]))


@case("LimitExceeded", "ModelLimits.elements")
def an_output_of_a_monstrous_shape(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["y"])], outputs=[info("y", (1 << 61, 4))]))


def declared(*dims: int, **data: Any) -> bytes:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims, **data)
    return written(model([node("Add", ["x", "w"], ["y"])], [tensor]))


@case("InvalidModel", "needs")
def a_weight_declared_larger_than_it_is(folder: Path) -> Any:
    return declared(1 << 20, raw_data=bytes(8))


@case("InvalidModel", "needs")
def a_weight_without_any_data(folder: Path) -> Any:
    return declared(1 << 36)


@case("InvalidModel", "needs")
def a_weight_of_numbers_that_are_missing(folder: Path) -> Any:
    return declared(1 << 34, float_data=[1.0, 2.0])


@case("InvalidModel", "the shape [-5] of tensor 'w' has a negative size")
def a_weight_of_negative_size(folder: Path) -> Any:
    return declared(-5, raw_data=bytes(8))


@case("InvalidModel", "needs")
def a_weight_whose_size_overflows_to_nothing(folder: Path) -> Any:
    return declared(1 << 32, 1 << 32, raw_data=b"")


@case("InvalidModel", "too many dimensions")
def a_weight_of_a_million_dimensions(folder: Path) -> Any:
    dims = b"\x08\x01" * 1_000_000
    tensor = dims + b"\x10\x01\x42\x01w"
    graph = b"\x2a" + varint(len(tensor)) + tensor
    return b"\x08\x0a\x3a" + varint(len(graph)) + graph


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def sparse(dims: Sequence[int], index: int = 0) -> bytes:
    proto = model([node("Add", ["x", "s"], ["y"])])
    tensor = helper.make_sparse_tensor(ones("s", 1), ints("i", index), dims)
    proto.graph.sparse_initializer.append(tensor)
    return written(proto)


@case("LimitExceeded", "elements once it is dense")
def a_sparse_tensor_that_is_huge_when_dense(folder: Path) -> Any:
    return sparse([1 << 20, 1 << 20])


@case("InvalidModel", "has a negative size")
def a_sparse_tensor_of_negative_size(folder: Path) -> Any:
    return sparse([-4])


@case("LimitExceeded", "elements once it is dense")
def a_sparse_constant_that_is_huge_when_dense(folder: Path) -> Any:
    tensor = helper.make_sparse_tensor(ones("s", 1), ints("i", 0), [HUGE])
    constant = node("Constant", [], ["c"], sparse_value=tensor)
    return written(model([constant, node("Add", ["x", "c"], ["y"])]))
