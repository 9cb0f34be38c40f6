"""Load and save models: ONNX in any of its spellings, weights memory-mapped where they lie.

model = load("model.onnx")        # external data is mapped, not read: any size opens
save(model, "copy.onnx")          # over 1 GiB, the weights go to copy.onnx.data
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onward.errors import InvalidModel, UnsafeModel
from onward.graph.paths import check_readable

Source: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"

_EMBEDDED_AT_MOST = (
    1 << 30
)  # bytes of weights that go into the file itself (protobuf ends at 2 GiB)


def load(source: Source) -> ir.Model:
    """Load a model from a path, from bytes, or from what onnx or onnx-ir already hold."""
    if isinstance(source, ir.Model):
        return source
    return _from_proto(*read_proto(source))


def read_proto(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    """A model as ONNX's message, and the folder that its external data lies in."""
    if isinstance(source, (str, os.PathLike)):
        return _read_file(Path(source)), Path(source).parent
    if isinstance(source, bytes):
        return _parse(source, "these bytes"), None
    if isinstance(source, onnx.ModelProto):
        return source, None
    raise TypeError(
        "a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
        f"not {type(source).__name__}"
    )


def _read_file(path: Path) -> onnx.ModelProto:
    check_readable(path)
    form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    if form in (None, "protobuf"):
        return _parse(path.read_bytes(), str(path))
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # each text format has parse errors of its own
        raise InvalidModel(f"{path} is not an ONNX model in the form of {form}: {error}") from error


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise InvalidModel(
            f"{where}: not an ONNX model ({len(data):,} bytes that do not parse)"
        ) from error
    if not proto.HasField("graph"):
        raise InvalidModel(f"{where}: not an ONNX model (no graph in {len(data):,} bytes)")
    return proto


def _from_proto(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx-ir raises many kinds on broken graphs
        raise InvalidModel(f"the model breaks ONNX's rules: {error}") from error
    _check_values(model)
    for tensor in external_tensors(model):
        check_external(tensor, folder)
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    return model


def _check_values(model: ir.Model) -> None:
    """Whatever is read must have been made: by a node, a feed or a weight."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.inputs:
            if value is not None and value.graph is None:
                raise InvalidModel(
                    f"node {node.name!r} ({node.op_type}) reads {value.name!r}, which nothing makes"
                )
    for value in model.graph.outputs:
        if value.graph is None or (value.producer() is None and not _is_given(value)):
            raise InvalidModel(f"nothing makes the output {value.name!r}")


def _is_given(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_initializer()


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor whose data lies in another file, subgraphs included."""
    found = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                found.append(value.const_value)
    return found


def check_external(tensor: ir.ExternalTensor, folder: Path | None) -> None:
    """External data stays inside the model's folder, in an ordinary file that is long enough."""
    what = f"external data of {tensor.name!r}"
    if folder is None:
        raise InvalidModel(
            f"{what} is in {tensor.location!r}, but the model came without a folder\n"
            "load it by its path, or embed the weights"
        )
    location = Path(tensor.location)
    if location.is_absolute() or ".." in location.parts:
        raise UnsafeModel(f"{what} points outside the model's folder: {tensor.location!r}")
    path = folder / location
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InvalidModel(f"{what} is missing: {path}\nkeep it beside the model") from None
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnsafeModel(
            f"{what} points outside the model's folder by a link: {tensor.location!r}"
        )
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeModel(f"{what} is not an ordinary file: {path}")
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if (tensor.offset or 0) < 0 or (tensor.length or 0) < 0 or end > status.st_size:
        raise InvalidModel(f"{what} ends at byte {end:,} of a file of {status.st_size:,}: {path}")


def weight_bytes(model: ir.Model) -> int:
    """How much memory the model's weights need."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def save(model: ir.Model, path: str | os.PathLike[str], *, more: bytes = b"") -> None:
    """Save a model; large weights go beside it. The old file stands until the new one is whole.

    `more` is appended: fields of the model's message that onnx-ir does not hold.
    """
    path = Path(path)
    outside = f"{path.name}.data" if weight_bytes(model) > _EMBEDDED_AT_MOST else None
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onward-") as aside:
        ir.save(model, Path(aside) / path.name, external_data=outside)
        if more:
            with (Path(aside) / path.name).open("ab") as file:
                file.write(more)
        for made in sorted(
            Path(aside).iterdir(), reverse=True
        ):  # the data before what points to it
            os.replace(made, path.parent / made.name)
