"""Read checkpoint files of onnxruntime.training 1.16 to 1.19, with only numpy.

A file is one flatbuffer with the identifier ODTC. Newer ones keep large tensors in a second file,
`{name}.data`. Every offset is checked before it is used: a damaged file raises CheckpointCorrupt,
and no tensor is larger than the file.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.file_contents import (
    Array,
    Contents,
    Property,
    StoredOptimizer,
    StoredParameter,
)
from onward.errors import CheckpointCorrupt, CheckpointError

IDENTIFIER = b"ODTC"
NEWEST = 3

_TYPES = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8",
    9: "?", 10: "<f2", 11: "<f8", 12: "<u4", 13: "<u8",
}  # fmt: skip
_GROUP = "group0"  # onnxruntime has one parameter group, of this name


def is_peer_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a checkpoint of onnxruntime.training."""
    try:
        with Path(path).open("rb") as file:
            return file.read(8)[4:] == IDENTIFIER
    except OSError:
        return False


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a checkpoint of onnxruntime.training."""
    path = Path(path)
    try:
        root = _Table.root(_Bytes(path.read_bytes()))
        version = root.int32(0)
        if not 1 <= version <= NEWEST:
            raise CheckpointError(
                f"{path} is a checkpoint of onnxruntime.training in version {version}\n"
                f"versions 1 to {NEWEST} are known: save it with one of 1.16 to 1.19"
            )
        tensors = _Tensors(path, root.data)
        return Contents(
            _parameters(root.table(1), tensors),
            _properties(root.table(3)),
            _optimizer(root.tables(2), tensors),
        )
    except _Damaged as error:
        raise CheckpointCorrupt(
            f"{path} is a damaged checkpoint of onnxruntime.training: {error}\n"
            "copy it again, or take an earlier one"
        ) from error


def _parameters(module: _Table | None, tensors: _Tensors) -> dict[str, StoredParameter]:
    if module is None:
        return {}
    nominal = module.boolean(2)
    found: dict[str, StoredParameter] = {}
    for index, requires_grad in ((0, True), (1, False)):
        for table in module.tables(index):
            name = table.text(0)
            if name in found:
                raise _Damaged(f"two parameters are called {name!r}")
            data = None if nominal else tensors.take(table)
            found[name] = StoredParameter(requires_grad, data)
    return found


def _properties(bag: _Table | None) -> dict[str, Property]:
    if bag is None:
        return {}
    found: dict[str, Property] = {table.text(0): table.int64(1) for table in bag.tables(0)}
    found |= {table.text(0): table.float32(1) for table in bag.tables(1)}
    found |= {table.text(0): table.text(1) for table in bag.tables(2)}
    return found


def _optimizer(groups: Iterator[_Table], tensors: _Tensors) -> StoredOptimizer | None:
    """The optimizer state of the group, whose slots are named momentum0, momentum1."""
    for group in groups:
        if group.text(0) != _GROUP:
            continue
        found = StoredOptimizer(group.int64(1), group.float32(2))
        for state in group.tables(3):
            name = state.text(0)
            for table in state.tables(1):
                slot = found.slots.setdefault(table.text(0), {})
                if name in slot:
                    raise _Damaged(f"the optimizer's state of {name!r} occurs twice")
                slot[name] = tensors.take(table)
        return found
    return None


class _Damaged(Exception):
    """The bytes are not a valid checkpoint."""


class _Tensors:
    """Reads the tensors of a checkpoint; their total size is bounded by the files' sizes."""

    def __init__(self, path: Path, data: _Bytes) -> None:
        self._left, self._data_file = data.size, path.with_name(path.name + ".data")
        self._data_left: int | None = None

    def take(self, table: _Table) -> Array:
        name, dims, number = table.text(0), table.int64s(2), table.int32(3)
        if number not in _TYPES:
            raise _Damaged(f"tensor {name!r} is of type {number}, which no parameter has")
        dtype = np.dtype(_TYPES[number])
        if any(size < 0 for size in dims):
            raise _Damaged(f"the shape {tuple(dims)} of tensor {name!r} has a negative size")
        count = math.prod(dims)
        offset = table.int64(6, default=-1)
        if offset < 0:
            raw = table.octets(4)
            self._left -= len(raw)
            if len(raw) != count * dtype.itemsize or self._left < 0:
                raise _Damaged(f"tensor {name!r} of shape {tuple(dims)} has {len(raw)} bytes")
            array: Array = np.frombuffer(raw, dtype)
        else:
            array = self._from_data_file(name, offset, count, dtype)
        return array.reshape(dims).astype(dtype.newbyteorder("="), copy=False)

    def _from_data_file(self, name: str, offset: int, count: int, dtype: np.dtype[Any]) -> Array:
        if not self._data_file.is_file():
            raise _Damaged(f"the data of {name!r} is in {self._data_file.name}, which is missing")
        size = self._data_file.stat().st_size
        left = size if self._data_left is None else self._data_left
        nbytes = count * dtype.itemsize
        self._data_left = left - nbytes
        if self._data_left < 0 or offset + nbytes > size:
            raise _Damaged(f"the data of {name!r} ends after the end of {self._data_file.name}")
        return np.fromfile(self._data_file, dtype, count, offset=offset)


class _Bytes:
    """A buffer whose reads are checked to be inside it."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = memoryview(data), len(data)

    def read_bytes(self, start: int, length: int) -> memoryview:
        if start < 0 or length < 0 or start + length > self.size:
            raise _Damaged(f"{length} bytes at {start} of {self.size}")
        return self._data[start : start + length]

    def number(self, code: str, start: int) -> Any:
        (value,) = struct.unpack("<" + code, self.read_bytes(start, struct.calcsize("<" + code)))
        return value

    def read_offset(self, start: int) -> int:
        """The position to which the offset at `start` points."""
        return int(start + self.number("I", start))

    def vector(self, start: int, width: int) -> tuple[int, int]:
        """The position of a vector's elements, and their number."""
        count = self.number("I", start)
        self.read_bytes(start + 4, count * width)
        return start + 4, count


class _Table:
    """A flatbuffer's table: its fields by number, each with a default."""

    def __init__(self, data: _Bytes, start: int) -> None:
        self.data, self._start = data, start
        self._fields = start - data.number("i", start)
        size = data.number("H", self._fields)
        data.read_bytes(self._fields, size)
        self._count = (size - 4) // 2

    @classmethod
    def root(cls, data: _Bytes) -> _Table:
        return cls(data, data.read_offset(0))

    def _place(self, index: int) -> int | None:
        if index >= self._count:
            return None
        offset = self.data.number("H", self._fields + 4 + 2 * index)
        return self._start + offset if offset else None

    def _number(self, code: str, index: int, default: Any) -> Any:
        place = self._place(index)
        return default if place is None else self.data.number(code, place)

    def boolean(self, index: int) -> bool:
        return bool(self._number("B", index, 0))

    def int32(self, index: int) -> int:
        return int(self._number("i", index, 0))

    def int64(self, index: int, default: int = 0) -> int:
        return int(self._number("q", index, default))

    def float32(self, index: int) -> float:
        return float(self._number("f", index, 0.0))

    def octets(self, index: int) -> memoryview:
        place = self._place(index)
        if place is None:
            return self.data.read_bytes(0, 0)
        return self.data.read_bytes(*self.data.vector(self.data.read_offset(place), 1))

    def text(self, index: int) -> str:
        try:
            return str(self.octets(index), "utf-8")
        except UnicodeDecodeError as error:
            raise _Damaged(f"a name is not text: {error}") from error

    def int64s(self, index: int) -> list[int]:
        place = self._place(index)
        if place is None:
            return []
        start, count = self.data.vector(self.data.read_offset(place), 8)
        return list(struct.unpack(f"<{count}q", self.data.read_bytes(start, 8 * count)))

    def table(self, index: int) -> _Table | None:
        place = self._place(index)
        return None if place is None else _Table(self.data, self.data.read_offset(place))

    def tables(self, index: int) -> Iterator[_Table]:
        place = self._place(index)
        if place is None:
            return
        start, count = self.data.vector(self.data.read_offset(place), 4)
        for number in range(count):
            yield _Table(self.data, self.data.read_offset(start + 4 * number))
