"""Open and map external data, only from inside the model's folder.

No absolute path, no `..`, no link of either kind, nothing but ordinary files. Each part of the path
is opened from the folder before it, and what was opened is what is checked: a file that is swapped
between the check and the use is never read.

A mapped file that is truncated while it is in use ends the process (SIGBUS): if others can write
to a model's folder, copy the model first, or open it with `isolated=True`.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

import onnx_ir as ir

from onward.errors import InvalidModel, UnsafeModel
from onward.graph.mapped import MappedTensor

External: TypeAlias = "MappedTensor | ir.ExternalTensor"
Holder = tuple[External, Callable[[ir.TensorProtocol], None]]  # and how to replace it
_EXTERNAL = (MappedTensor, ir.ExternalTensor)
_BY_FOLDER = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


def external_tensors(model: ir.Model) -> list[External]:
    """Every tensor whose data is in another file: of initializers and of attributes."""
    return [tensor for tensor, _ in _holders(model)]


def map_external(model: ir.Model, folder: Path | None) -> None:
    """Map the external data of a model from its folder; every range is checked."""
    files: dict[str, tuple[mmap.mmap | None, int]] = {}
    for tensor, replace in list(_holders(model)):
        if isinstance(tensor, MappedTensor):
            continue
        what = f"external data of {tensor.name!r}"
        if folder is None:
            raise InvalidModel(
                f"{what} is in {tensor.location!r}, but the model came without a folder\n"
                "load it by its path, or embed the weights"
            )
        location = str(tensor.location)
        if location not in files:
            files[location] = _map(folder, location, what)
        mapping, size = files[location]
        _check_range(tensor, size, what)
        replace(MappedTensor(tensor, mapping, folder))


def map_range(entries: Mapping[str, str], size: int, folder: Path, what: str) -> memoryview:
    """Map `size` bytes of external data, whose place these entries of its tensor give."""
    mapping, length = _map(folder, entries.get("location", ""), what)
    start = int(entries.get("offset", "0"))
    if start + size > length:
        raise InvalidModel(f"{what} ends at byte {start + size:,} of a file of {length:,}")
    return memoryview(b"" if mapping is None else mapping)[start : start + size]


def replace_external(
    model: ir.Model, make: Callable[[ir.ExternalTensor], ir.TensorProtocol]
) -> None:
    """Replace every tensor that is still a reference to another file."""
    for tensor, replace in list(_holders(model)):
        if isinstance(tensor, ir.ExternalTensor):
            replace(make(tensor))


@contextmanager
def embedded(model: ir.Model) -> Iterator[None]:
    """While in this context, the model is written with all its tensors embedded.

    Mapped tensors are embedded anyway. Those of onnx-ir, in a model that a user built or loaded
    with it, would be written as references, or close their mapping while it is in use.
    """
    pairs = [
        (tensor, put) for tensor, put in _holders(model) if not isinstance(tensor, MappedTensor)
    ]
    with _replaced(pairs, _in_memory):
        yield


@contextmanager
def referenced(model: ir.Model) -> Iterator[None]:
    """While in this context, mapped tensors are written as references to their files."""
    pairs = [(tensor, put) for tensor, put in _holders(model) if isinstance(tensor, MappedTensor)]
    with _replaced(pairs, MappedTensor.reference):
        yield


def forget_pages(model: ir.Model) -> None:
    """Release the memory of mapped pages; they are read again when needed."""
    for tensor in external_tensors(model):
        if isinstance(tensor, MappedTensor):
            tensor.forget_pages()


@contextmanager
def _replaced(pairs: Iterable[Any], make: Callable[[Any], ir.TensorProtocol]) -> Iterator[None]:
    done: list[Any] = []
    try:
        for tensor, replace in pairs:
            replace(make(tensor))
            done.append((tensor, replace))
        yield
    finally:
        for tensor, replace in done:
            replace(tensor)


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _holders(model: ir.Model) -> Iterator[Holder]:
    """Every external tensor, with a function that replaces it."""
    functions = [function.graph for function in model.functions.values()]
    for graph in (*model.graphs(), *functions, *(sub for f in functions for sub in f.subgraphs())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, _EXTERNAL):
                yield value.const_value, partial(setattr, value, "const_value")
        for node in graph:
            for attribute in list(node.attributes.values()):
                if isinstance(attribute.value, _EXTERNAL):
                    yield attribute.value, partial(_set_attribute, node, attribute.name)
                elif attribute.type is ir.AttributeType.TENSORS:
                    for index, tensor in enumerate(attribute.value or ()):
                        if isinstance(tensor, _EXTERNAL):
                            yield tensor, partial(_set_element, node, attribute.name, index)


def _set_attribute(node: ir.Node, name: str, tensor: ir.TensorProtocol) -> None:
    node.attributes[name] = ir.AttrTensor(name, tensor)


def _set_element(node: ir.Node, name: str, index: int, tensor: ir.TensorProtocol) -> None:
    tensors = list(node.attributes[name].as_tensors())
    tensors[index] = tensor
    node.attributes[name] = ir.AttrTensors(name, tensors)


def _check_range(tensor: ir.ExternalTensor, size: int, what: str) -> None:
    if min(tensor.shape.numpy(), default=0) < 0:
        raise InvalidModel(f"{what}: its shape {tensor.shape} has a negative size")
    if tensor.dtype == ir.DataType.STRING:
        raise InvalidModel(
            f"{what}: its type is STRING, and text cannot be external data\n"
            "store the tensor inside the model"
        )
    offset, needed = tensor.offset or 0, tensor.nbytes
    length = needed if tensor.length is None else tensor.length
    if offset < 0 or length < 0:
        raise InvalidModel(
            f"{what} has offset {offset:,} and length {length:,}: neither may be negative"
        )
    if offset + max(length, needed) > size:
        raise InvalidModel(
            f"{what} ends at byte {offset + max(length, needed):,} of a file of {size:,}: "
            f"{tensor.location}"
        )
    if length < needed:
        raise InvalidModel(f"{what} has {length:,} bytes and needs {needed:,}")


# -- opening ---------------------------------------------------------------------------------------


def _map(folder: Path, location: str, what: str) -> tuple[mmap.mmap | None, int]:
    file = open_inside(folder, location, what)
    try:
        return map_file(file)
    finally:
        os.close(file)


def map_file(file: int) -> tuple[mmap.mmap | None, int]:
    """Map an open file: the mapping, None if the file is empty, and its size."""
    size = os.fstat(file).st_size
    return (mmap.mmap(file, 0, access=mmap.ACCESS_READ) if size else None), size


def open_inside(folder: Path, location: str, what: str) -> int:
    """Open a regular file below a folder for reading; links and special files are refused."""
    parts = check_location(location, what)
    try:
        file = _open_by_folder(folder, parts, what) if _BY_FOLDER else _open(folder, parts, what)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidModel(
            f"{what} is missing: {folder / location}\nkeep it in the model's folder"
        ) from None
    except UnsafeModel:
        raise
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{what} cannot be opened: {error}") from error
    status = os.fstat(file)
    try:
        _check_ordinary(status, what, location)
        if status.st_nlink > 1:
            raise UnsafeModel(
                f"{what} has {status.st_nlink} names (hard links): {location!r}\n"
                "copy the file, so that it is the model's own"
            )
    except UnsafeModel:
        os.close(file)
        raise
    return file


def check_location(location: str, what: str) -> tuple[str, ...]:
    """The parts of a location inside the model's folder; any other location is refused."""
    path = PurePosixPath(location)
    outside = path.is_absolute() or ".." in path.parts
    windows = PureWindowsPath(location)
    if os.name == "nt" or "\\" in location:
        outside |= bool(windows.drive or windows.root) or ".." in windows.parts
    if outside:
        raise UnsafeModel(f"{what} points outside the model's folder: {location[:200]!r}")
    if not path.parts or "\0" in location:
        raise InvalidModel(f"{what}: its location is not a file name: {location[:200]!r}")
    return path.parts


def _open_by_folder(folder: Path, parts: tuple[str, ...], what: str) -> int:
    """Each part from the folder before it, following no link."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        try:
            _check_no_link(os.stat(part, dir_fd=here, follow_symlinks=False), what, parts, last)
            kind = os.O_NONBLOCK if last else os.O_DIRECTORY  # a FIFO must not make us wait
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here


def _open(folder: Path, parts: tuple[str, ...], what: str) -> int:
    """Where folders cannot be opened (Windows): each part is checked by its path."""
    path = folder
    for index, part in enumerate(parts):
        path = path / part
        _check_no_link(os.lstat(path), what, parts, index == len(parts) - 1)
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def _check_no_link(status: os.stat_result, what: str, parts: tuple[str, ...], last: bool) -> None:
    location = "/".join(parts)
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeModel(
            f"{what} is behind a symbolic link: {location!r}\ncopy the file into the model's folder"
        )
    if last:
        _check_ordinary(status, what, location)


def _check_ordinary(status: os.stat_result, what: str, location: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeModel(f"{what} is not an ordinary file: {location!r}")
