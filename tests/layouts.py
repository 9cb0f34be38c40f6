"""Models saved with their weights in other files, in every layout that ONNX allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

_BITS = {TensorProto.INT4: 4, TensorProto.UINT4: 4}


@dataclass(frozen=True)
class Layout:
    """Which tensors go to files, to how many files, in which order, how far from each other."""

    threshold: int = 0  # bytes; smaller tensors stay in the model
    files: int = 1
    reverse: bool = False
    gap: int = 0  # bytes before each tensor: 1 makes offsets that no type is aligned to
    shared: bool = False  # equal bytes lie in the file once
    attributes: bool = True

    def __str__(self) -> str:
        words = [name for name in ("reverse", "shared") if getattr(self, name)]
        return "-".join([f"{self.threshold}", f"{self.files}files", f"gap{self.gap}", *words])


LAYOUTS = [
    Layout(),
    Layout(threshold=256),
    Layout(threshold=1024),
    Layout(files=3),
    Layout(reverse=True),
    Layout(gap=1),
    Layout(gap=4096, files=2, reverse=True),
    Layout(shared=True),
]


def save_in_layout(model: onnx.ModelProto, folder: Path, layout: Layout, name: str = "m") -> Path:
    """The model's path; its weights lie in {name}.0.data, {name}.1.data ..."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    folder.mkdir(parents=True, exist_ok=True)
    contents = [bytearray() for _ in range(layout.files)]
    tensors = [t for t in _tensors(own, layout.attributes) if t.data_type != TensorProto.STRING]
    seen: dict[bytes, tuple[int, int]] = {}
    for index, tensor in enumerate(reversed(tensors) if layout.reverse else tensors):
        data = raw_bytes(tensor)
        if len(data) < layout.threshold:
            continue
        which = index % layout.files
        place = seen.get(data) if layout.shared else None
        if place is None:
            contents[which] += bytes(layout.gap)
            place = seen[data] = which, len(contents[which])
            contents[which] += data
        _refer(tensor, f"{name}.{place[0]}.data", place[1], len(data))
    for which, content in enumerate(contents):
        (folder / f"{name}.{which}.data").write_bytes(content)
    path = folder / f"{name}.onnx"
    path.write_bytes(own.SerializeToString())
    return path


def raw_bytes(tensor: TensorProto) -> bytes:
    """What a tensor holds, as ONNX lays it out in a file."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    if tensor.data_type in _BITS:  # two in each byte of int32_data
        return bytes(value & 0xFF for value in tensor.int32_data)
    return np.ascontiguousarray(onnx.numpy_helper.to_array(tensor)).tobytes()


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    kept.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        kept.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(kept)


def _tensors(model: onnx.ModelProto, attributes: bool) -> Iterator[TensorProto]:
    yield from _of_graph(model.graph, attributes)
    for function in model.functions:
        yield from _of_nodes(function.node, attributes)


def _of_graph(graph: onnx.GraphProto, attributes: bool) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _of_nodes(graph.node, attributes)


def _of_nodes(nodes: object, attributes: bool) -> Iterator[TensorProto]:
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            if attribute.HasField("t") and attributes:
                yield attribute.t
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g, attributes)


def many_weights() -> onnx.ModelProto:
    """x (n, 64) -> y (n, 4): weights of every size and type, in branches and in a function too."""
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> TensorProto:
        array = (rng.normal(size=shape) / 8).astype(np.float32)
        return onnx.numpy_helper.from_array(array, name)

    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["a", f"{name}.w"], [f"{name}.m"]),
            helper.make_node("Add", [f"{name}.m", f"{name}.b"], [f"{name}.y"]),
        ]
        y = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, ["n", 32])
        weights = [tensor(f"{name}.w", 32, 32), tensor(f"{name}.b", 32)]
        return helper.make_graph(nodes, name, [], [y], weights)

    half = helper.make_tensor("h", TensorProto.BFLOAT16, [32, 32], rng.normal(size=1024) / 8)
    four = helper.make_tensor("q", TensorProto.INT4, [32, 64], rng.integers(-8, 8, 2048))
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    empty = onnx.numpy_helper.from_array(np.zeros((0, 32), np.float32), "empty")
    scale = onnx.numpy_helper.from_array(np.full((), 0.02, np.float32), "scale")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["xb"]),
        helper.make_node("Concat", ["xb", "empty"], ["a"], axis=0),
        helper.make_node(
            "If", ["flag"], ["c"], then_branch=branch("then"), else_branch=branch("else")
        ),
        helper.make_node("Cast", ["h"], ["h32"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "h32"], ["d"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["q32"]),
        helper.make_node("MatMul", ["d", "q32"], ["e"]),
        helper.make_node("Constant", [], ["k"], value=tensor("", 64, 8)),
        helper.make_node("MatMul", ["e", "k"], ["f"]),
        helper.make_node("Project", ["f"], ["y"], domain="test.own"),
    ]
    inner = [
        helper.make_node("Constant", [], ["p"], value=tensor("", 8, 4)),
        helper.make_node("MatMul", ["f", "p"], ["y"]),
    ]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("test.own", 1)]
    function = helper.make_function("test.own", "Project", ["f"], ["y"], inner, imports[:1])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [tensor("w", 64, 32), tensor("b", 32), empty, flag, half, four, scale],
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[function])
