"""unpack: write the ONNX model that a packed file was made from.

unpack("model.onnxpack", "model.onnx")
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx

from onward.compress.packing.message_tensors import is_reference, restore, tensors_of
from onward.compress.packing.pack import check_target
from onward.compress.progress_steps import Progress
from onward.errors import FileExists, InvalidModel
from onward.graph.external import check_location
from onward.graph.limits import DEFAULT_LIMITS
from onward.graph.packed.container import PackedBlock, PackedFile, Use, open_packed
from onward.graph.paths import follow_link, to_path, writing

Array = np.ndarray[Any, Any]


def unpack(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the model of a packed file, and its external data where it had some.

    Args:
        path: the packed file
        out: the model to write; by default the packed file's path with the suffix .onnx. External
            data gets its old name, in the same folder
        overwrite: replace files of these names
        verify: also compare the SHA-256 of each tensor; the CRC-32 of what is stored, which finds
            damage, is always compared
        progress: called with the step that begins, how many tensors are done, and of how many
    """
    source = to_path(path)
    target = to_path(out) if out is not None else source.with_suffix(".onnx")
    file = open_packed(source)
    check_target(target, overwrite)
    _check_data_files(file, target, overwrite)
    place = target if file.files else follow_link(target)  # external data is not found by a link
    with (
        writing(target),
        tempfile.TemporaryDirectory(dir=place.absolute().parent, prefix=".onward-") as aside,
    ):
        folder = Path(aside) / "new"
        folder.mkdir()
        (folder / target.name).write_bytes(_rebuild(file, folder, verify, progress))
        for name in (*file.files, target.name):  # external data before the model that refers to it
            (place.parent / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, place if name == target.name else place.parent / name)
    return target


def _check_data_files(file: PackedFile, target: Path, overwrite: bool) -> None:
    for name in file.files:
        check_location(name, f"external data of {file.name}")
    for name in file.files:
        if PurePosixPath(name) == PurePosixPath(target.name):
            raise FileExists(
                f"{target} cannot be written: the model's external data has that name\n"
                "give another name"
            )
        if (target.parent / name).exists() and not overwrite:
            raise FileExists(
                f"{target.parent / name} cannot be written: there is a file of that name\n"
                "unpack into another folder, or overwrite it"
            )


def _rebuild(file: PackedFile, folder: Path, verify: bool, progress: Progress | None) -> bytes:
    """The model's message; external data is written below the folder."""
    graph = file.read_graph(DEFAULT_LIMITS.file_bytes)
    if verify:
        _verify(file, file.graph, graph, "its graph")
    proto = onnx.load_model_from_string(graph)
    tensors = [tensor for tensor in tensors_of(proto) if is_reference(tensor)]
    if len(tensors) != len(file.uses):
        raise InvalidModel(
            f"{file.name} is damaged: its index and its graph have different tensors"
        )
    with _DataWriter(folder, file.files) as data_files:
        for count, (tensor, use) in enumerate(zip(tensors, file.uses)):
            if progress is not None:
                progress(f"unpacking {tensor.name or 'a tensor'}", count, len(tensors))
            data = file.read_tensor(use.tensor, tensor.name)
            if verify:
                _verify(file, file.tensors[use.tensor], data.data, f"tensor {tensor.name!r}")
            if use.field_name == "external_data":
                data_files.write(use, data)
            restore(tensor, use, data)
    # a message that kept its tensors may be of another writer, who orders fields otherwise
    return proto.SerializeToString() if tensors else graph


def _verify(file: PackedFile, block: PackedBlock, data: memoryview | bytes, what: str) -> None:
    if hashlib.sha256(data).hexdigest() != block.sha256:
        raise InvalidModel(
            f"{file.name} is damaged: the SHA-256 of {what} differs\n"
            "get the file again, or pack the model again"
        )


class _DataWriter:
    """Writes external data to new files of the old sizes; what no tensor covers is zero."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self._files: dict[str, Any] = {}
        for name, size in sizes.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = path.open("wb")
            self._files[name].truncate(size)

    def write(self, use: Use, data: Array) -> None:
        file = self._files[use.external["location"]]
        file.seek(int(use.external.get("offset", 0)))
        file.write(data.data)

    def __enter__(self) -> _DataWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
