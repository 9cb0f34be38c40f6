"""pack: write a model in fewer bytes without losing a bit.

pack("model.onnx", "model.onnxpack")
onward.load("model.onnxpack")          # reads one tensor at a time
"""

from __future__ import annotations

import copy
import mmap
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.compress.packing.message_tensors import (
    embedded_bytes,
    entries_of,
    explicit_location,
    is_external,
    refer_to,
    tensors_of,
)
from onward.compress.packing.writer import PackedWriter
from onward.compress.progress_steps import Progress, no_progress
from onward.errors import FileExists, InvalidModel
from onward.graph.external import map_file, open_inside
from onward.graph.files import is_binary, read_proto, save
from onward.graph.packed.container import Use
from onward.graph.packed.recognize import SUFFIX, is_packed
from onward.graph.paths import check_replaceable, check_writable, follow_link, to_path, writing

if TYPE_CHECKING:
    from onward.graph.files import Source

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What a packing did.

    Attributes:
        path: the file that was written
        before: bytes of the model's files
        after: bytes of the file that was written
        tensors: the number of tensors that were packed
        shared: how many of them are equal to another and were stored once with it
    """

    path: Path
    before: int
    after: int
    tensors: int
    shared: int

    def to_json(self) -> dict[str, Any]:
        """The result as values that JSON has."""
        return {**asdict(self), "path": str(self.path)}


def pack(
    model: Source,
    path: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Packed:
    """Write a model as a packed file, from which `unpack` makes the same model, bit for bit.

    Args:
        model: a path, or a model in memory
        path: the file to write; by default the model's path with the suffix .onnxpack
        overwrite: replace a file of this name
        progress: called with what begins, how many bytes are done, and of how many
    """
    target = _target(model, path)
    if is_packed(model):
        raise InvalidModel(f"{model!s:.200} is packed already\nonward unpack undoes it")
    check_target(target, overwrite)
    folder = follow_link(target).absolute().parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".onward-") as aside:
        if isinstance(model, ir.Model):
            save(model, Path(aside) / "model.onnx")
            model = Path(aside) / "model.onnx"
        return _pack(model, target, Path(aside) / target.name, progress or no_progress)


def _target(model: Source, path: str | os.PathLike[str] | None) -> Path:
    if path is not None:
        return to_path(path)
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidModel("a model in memory has no name\ngive the path of the packed file")
    return to_path(model).with_suffix(SUFFIX)


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a file to write that exists or cannot be written, before the work is done."""
    if path.exists() and not overwrite and not path.is_dir():
        raise FileExists(
            f"{path} cannot be written: there is a file of that name\n"
            "remove it, give another name, or overwrite it"
        )
    check_writable(path)
    check_replaceable(path)


def _pack(model: Source, target: Path, made: Path, progress: Progress) -> Packed:
    proto, folder, _ = read_proto(model, any_domain=True)
    if isinstance(model, onnx.ModelProto):  # it is the caller's, and its tensors are taken out
        proto = copy.deepcopy(proto)
    data_files = _DataFiles(folder)
    tensors = list(tensors_of(proto))
    before = len(proto.SerializeToString()) if folder is None else _file_size(model)
    whole = _bytes_of_other_writer(model, proto)
    if whole is not None and not any(is_external(tensor) for tensor in tensors):
        tensors = []  # all of them stay in the message, which is stored as it is
    uses: list[Use] = []
    with writing(target), made.open("wb") as file:
        writer = PackedWriter(file)
        for count, tensor in enumerate(tensors):
            progress(f"packing {tensor.name or 'a tensor'}", count, len(tensors))
            use = _pack_tensor(tensor, writer, data_files)
            uses += [use] if use is not None else []
        if whole is None or tensors:
            whole = proto.SerializeToString(deterministic=True)
        writer.finish(whole, uses, data_files.sizes)
        file.flush()
        os.fsync(file.fileno())
        after = file.seek(0, os.SEEK_END)
    with writing(target):
        os.replace(made, follow_link(target))
    return Packed(
        path=target,
        before=before + sum(data_files.sizes.values()),
        after=after,
        tensors=len(uses),
        shared=len(uses) - len({use.tensor for use in uses}),
    )


def _bytes_of_other_writer(model: Source, proto: onnx.ModelProto) -> bytes | None:
    """The model's bytes, if this protobuf would write the message in others.

    The order of fields, packed lists and repeated fields are free; unknown fields move to the end.
    """
    if isinstance(model, bytes):
        data = model
    elif isinstance(model, (str, os.PathLike)) and is_binary(Path(model)):
        data = Path(model).read_bytes()
    else:
        return None
    return None if proto.SerializeToString() == data else data


def _file_size(model: Source) -> int:
    return Path(model).stat().st_size if isinstance(model, (str, os.PathLike)) else 0


def _pack_tensor(
    tensor: onnx.TensorProto, writer: PackedWriter, data_files: _DataFiles
) -> Use | None:
    external: dict[str, str] = {}
    if is_external(tensor):
        field, data, external = "external_data", data_files.read(tensor), entries_of(tensor)
    else:
        found = embedded_bytes(tensor)
        if found is None:
            return None
        field, data = found
        external = explicit_location(tensor)
    number = writer.add_tensor(tensor.name, data, ir.DataType(tensor.data_type))
    refer_to(tensor, number, field, len(data))
    return Use(tensor=number, field_name=field, external=external)


class _DataFiles:
    """The files of external data, each mapped once, only from inside the model's folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._mappings: dict[str, mmap.mmap | None] = {}
        self.sizes: dict[str, int] = {}

    def read(self, tensor: onnx.TensorProto) -> Array:
        """The bytes of a tensor, as a view of its file."""
        what = f"external data of {tensor.name!r}"
        entries = entries_of(tensor)
        location, offset = entries.get("location", ""), int(entries.get("offset", 0))
        if self._folder is None:
            raise InvalidModel(
                f"{what} is in {location!r}, but the model came without a folder\n"
                "give the model's path"
            )
        if location not in self.sizes:
            file = open_inside(self._folder, location, what)
            try:
                self._mappings[location], self.sizes[location] = map_file(file)
            finally:
                os.close(file)
        size = self.sizes[location]
        needed = ir.DataType(tensor.data_type).bitwidth * int(np.prod(tensor.dims, dtype=np.int64))
        length = (needed + 7) // 8
        if not 0 <= offset <= offset + length <= size:
            raise InvalidModel(
                f"{what} ends at byte {offset + length:,} of a file of {size:,}: {location}"
            )
        mapping = self._mappings[location]
        if mapping is None or not length:
            return np.empty(0, np.uint8)
        return np.frombuffer(mapping, np.uint8, length, offset)
