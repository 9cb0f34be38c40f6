"""Load and save ONNX models in any of their formats, weights memory-mapped.

model = load("model.onnx")        # external data is mapped, not read: any size opens
model = load("model.onnxpack")    # packed tensors are decoded when they are needed
save(model, "copy.onnx")          # over 1 GiB, the weights go to copy.onnx.data
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from onward.errors import InvalidModel, OnwardError, WriteFailed
from onward.graph.external import embedded, map_external
from onward.graph.limits import DEFAULT_LIMITS, ModelLimits, check_operators, exceeded
from onward.graph.packed.container import PackedFile, open_packed
from onward.graph.packed.packed_tensor import attach_tensors
from onward.graph.packed.recognize import is_packed
from onward.graph.paths import check_replaceable, follow_link, read_model, to_path, writing
from onward.graph.protos import from_proto, without_maps, write_maps
from onward.graph.scan.model_scan import scan_model
from onward.graph.sparse_initializers import densify
from onward.graph.streamed import streamed_bytes, write_streamed

Source: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"

_EMBEDDED_AT_MOST = 1 << 30  # bytes of weights in the file itself (protobuf ends at 2 GiB)
_PLACE = 512  # bytes that name the place of a weight in a second file, at most
_COPIED_AT_MOST = 64 << 20  # bytes of weights that are copied to be written

_FIRST_FREE_IR = 4  # since this IR version initializers need not be inputs


def load(
    source: Source, limits: ModelLimits = DEFAULT_LIMITS, *, any_domain: bool = False
) -> ir.Model:
    """Load a model from a path, from bytes, or from what onnx or onnx-ir already hold.

    A model that exceeds the limits is refused before anything of it is built; `any_domain` allows
    operators of every domain, if their implementation is registered.
    """
    if isinstance(source, ir.Model):
        _check_operators(source, limits, any_domain)
        return source
    if is_packed(source):
        return _load_packed(open_packed(source), limits, any_domain)
    proto, folder, scanned = read_proto(source, limits, any_domain=any_domain)
    if scanned:
        return _from_proto(proto, functools.partial(map_external, folder=folder))
    return _from_parsed(proto, folder, limits, any_domain)


def build_scanned(data: bytes, name: str, folder: Path | None) -> ir.Model:
    """Build a model from bytes that a scan has already checked; `folder` has its external data."""
    return _from_proto(_parse(data, name), functools.partial(map_external, folder=folder))


def read_proto(
    source: Source, limits: ModelLimits = DEFAULT_LIMITS, *, any_domain: bool = False
) -> tuple[onnx.ModelProto, Path | None, bool]:
    """ONNX's message, the folder of its external data, and whether it was scanned."""
    if is_packed(source):
        return _read_packed(open_packed(source), limits, any_domain), None, True
    if isinstance(source, (str, os.PathLike)):
        return _read_file(Path(source), limits, any_domain)
    if isinstance(source, bytes):
        scan_model(source, limits, any_domain=any_domain, name="these bytes")
        return _parse(source, "these bytes"), None, True
    if isinstance(source, onnx.ModelProto):
        return source, None, False
    raise TypeError(
        "a model must be a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
        f"not {type(source).__name__}{_hint(source)}"
    )


def _read_packed(file: PackedFile, limits: ModelLimits, any_domain: bool) -> onnx.ModelProto:
    """The message of a packed model; its tensors are numbers in the packed file."""
    data = file.read_graph(limits.file_bytes)
    scan_model(data, limits, any_domain=any_domain, name=file.name)
    return _parse(data, file.name)


def _load_packed(file: PackedFile, limits: ModelLimits, any_domain: bool) -> ir.Model:
    proto = _read_packed(file, limits, any_domain)
    return _from_proto(proto, functools.partial(attach_tensors, file=file))


def _hint(source: object) -> str:
    """How an object of torch becomes a model, as the end of a message."""
    module = ("torch.nn.modules.module", "Module")
    if module in {(each.__module__, each.__name__) for each in type(source).__mro__}:
        return "\nexport the module first: torch.onnx.export(module, (example,), 'model.onnx')"
    return "\ngive its model_proto" if hasattr(source, "model_proto") else ""


def _read_file(
    path: Path, limits: ModelLimits, any_domain: bool
) -> tuple[onnx.ModelProto, Path | None, bool]:
    form = _form(path)
    if form is None or is_binary(path):
        data = read_model(path, limits.file_bytes)
        scan_model(data, limits, any_domain=any_domain, name=str(path))
        return _parse(data, str(path)), path.parent, True
    data = read_model(path, limits.text_bytes, "text_bytes")
    try:
        proto = onnx.load_model_from_string(data, format=form)
    except Exception as error:  # each text format raises its own parse errors
        first = (str(error).splitlines() or [""])[0][:200]
        raise InvalidModel(f"{path} is not an ONNX model in the form of {form}: {first}") from error
    return proto, path.parent, False


def _from_parsed(
    proto: onnx.ModelProto, folder: Path | None, limits: ModelLimits, any_domain: bool
) -> ir.Model:
    """A model from a parsed message; beyond 2 GiB protobuf cannot write it for a scan."""
    with contextlib.suppress(EncodeError):
        scan_model(proto.SerializeToString(), limits, any_domain=any_domain)
    model = _from_proto(proto, functools.partial(map_external, folder=folder))
    _check_operators(model, limits, any_domain)
    return model


def _check_operators(model: ir.Model, limits: ModelLimits, any_domain: bool) -> None:
    """Check the limits that hold for a graph in memory: number of nodes, domains."""
    nodes = [node for graph in model.graphs() for node in graph]
    if len(nodes) > limits.nodes:
        raise exceeded(limits, "nodes", len(nodes), "nodes", "the model")
    first = {
        (node.domain, node.op_type): f"{node.domain}::{node.op_type} (node {node.name!r})"
        for node in reversed(nodes)
    }
    own = {function.domain for function in model.functions.values()}
    check_operators(first.items(), own, limits, any_domain)


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise InvalidModel(
            f"{where}: not an ONNX model ({len(data):,} bytes that do not parse)"
        ) from error


def _from_proto(proto: onnx.ModelProto, attach: Callable[[ir.Model], None]) -> ir.Model:
    """A model from its message; `attach` gives it the tensors that are not in the message."""
    try:
        model = from_proto(densify(proto))
        _check_values(model)
        attach(model)
    except OnwardError:
        raise
    except Exception as error:  # onnx-ir raises many kinds on broken graphs
        cause: BaseException = error
        while cause.__cause__ is not None:  # onnx-ir says where, and its cause says what
            cause = cause.__cause__
        first = (str(cause).splitlines() or [type(cause).__name__])[0][:200]
        raise InvalidModel(f"the model breaks ONNX's rules: {first}") from error
    return model


def _check_values(model: ir.Model) -> None:
    """Refuse values that are read but not produced, and missing inputs of operators."""
    opset = model.opset_imports.get("", 1)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if not node.domain and len(node.inputs) < _min_inputs(node.op_type, opset):
            raise InvalidModel(
                f"{node.op_type} (node {node.name!r}) has {len(node.inputs)} inputs, "
                f"but needs {_min_inputs(node.op_type, opset)}"
            )
        for value in node.inputs:
            if value is not None and value.graph is None:
                raise InvalidModel(
                    f"node {node.name!r} ({node.op_type}) reads {value.name!r}, which is not "
                    "an input, an initializer or an output of a node"
                )
    for value in model.graph.outputs:
        if value.graph is None or (value.producer() is None and not _is_input_or_weight(value)):
            raise InvalidModel(
                f"the model's output {value.name!r} is not an input, an initializer or an output "
                "of a node"
            )


@functools.cache
def _min_inputs(op_type: str, opset: int) -> int:
    """How many inputs an operator needs; 0 for an operator that ONNX does not know."""
    if not onnx.defs.has(op_type, max_inclusive_version=opset):
        return 0
    return int(onnx.defs.get_schema(op_type, opset).min_input)


def _is_input_or_weight(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_initializer()


def weight_bytes(model: ir.Model) -> int:
    """How much memory the model's weights need."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def least_ir_version(model: ir.Model) -> int:
    """The model's IR version, or the one that its opset needs if initializers are not inputs.

    Before version 4 initializers had to be inputs; rewritten graphs lose such inputs.
    """
    version = model.ir_version or 0
    if version >= _FIRST_FREE_IR:
        return version
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    if all(value.is_graph_input() for value in values):
        return version
    opsets = [onnx.helper.make_opsetid(*each) for each in model.opset_imports.items()]
    needed: int = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    return max(needed, _FIRST_FREE_IR)


def save(model: ir.Model, path: str | os.PathLike[str], *, more: bytes = b"") -> None:
    """Save a model; large weights go to a second file. The old file stays until the end.

    A symbolic link stays; the file that it names is replaced. `more` is appended: fields of the
    model's message that onnx-ir does not hold.
    """
    path = to_path(path)
    version, model.ir_version = model.ir_version, least_ir_version(model)
    try:
        with embedded(model), writing(follow_link(path)):
            _save(model, path, more)
    finally:
        model.ir_version = version


def saved_bytes(model: ir.Model) -> int:
    """The bytes of what `save` writes: exact for one file, at most so many for two."""
    outside = weight_bytes(model) > _EMBEDDED_AT_MOST
    count = sum(len(graph.initializers) for graph in model.graphs()) if outside else 0
    with embedded(model):
        return streamed_bytes(model) + _PLACE * count


def is_binary(path: Path) -> bool:
    """Whether a file of this name has ONNX's message as protobuf writes it, not as text."""
    return _form(path) in (None, "protobuf")


def _form(path: Path) -> str | None:
    """The name of a file's format by its suffix; None: not known."""
    form: str | None = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    return form


def _write_copied(model: ir.Model, path: Path, outside: str | None) -> None:
    with without_maps(model) as maps:
        ir.save(model, path, external_data=outside)
    if maps:
        proto = onnx.load(path, load_external_data=False)
        write_maps(proto, maps)
        path.write_bytes(proto.SerializeToString())


def _save(model: ir.Model, path: Path, more: bytes) -> None:
    weights = weight_bytes(model)
    outside = f"{path.name}.data" if weights > _EMBEDDED_AT_MOST else None
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    check_replaceable(path)
    target = follow_link(path)
    if outside is not None and os.path.islink(path):  # external data is not found through a link
        raise WriteFailed(
            f"{path} cannot be written: it is a link, and a model of this size is two files\n"
            f"give the path of the file itself: {target}"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onward-") as aside:
        made = Path(aside) / path.name
        if outside is None and weights > _COPIED_AT_MOST and is_binary(path):
            write_streamed(model, made)
        else:
            _write_copied(model, made, outside)
        if more:
            with made.open("ab") as file:
                file.write(more)
        for each in sorted(
            Path(aside).iterdir(), reverse=True
        ):  # the data before what points to it
            os.replace(each, target if each == made else path.parent / each.name)
