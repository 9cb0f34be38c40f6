"""PackedFile: the header, the index and the blocks of a packed model, each checked when read."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onward.errors import InvalidModel
from onward.graph.external import map_file
from onward.graph.packed.chunks import ChunkError, decode_tensor, inflate
from onward.graph.packed.recognize import is_packed
from onward.graph.paths import check_readable

VERSION = 1
HEADER = struct.Struct("<8sIQQI")  # magic, version, begin, length and CRC-32 of the index
CHECKSUM = struct.Struct("<I")  # of the header
HEADER_BYTES = HEADER.size + CHECKSUM.size
_LONGEST_INDEX = 1 << 30
_ADVICE = "get the file again, or pack the model again"

Buffer: TypeAlias = "bytes | memoryview"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class PackedBlock:
    """A tensor or the graph in a packed file.

    Attributes:
        name: of the tensor (the first one, if several are equal)
        begin, length: its place in the file
        crc32: of the bytes in the file
        size: its bytes once it is unpacked
        sha256: of these bytes
    """

    name: str
    begin: int
    length: int
    crc32: int
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Use:
    """Where a tensor is used, in the order of the message.

    Attributes:
        tensor: the number of its block
        field_name: the field of the message that held its bytes: "raw_data", "float_data",
            "double_data", or "external_data"
        external: the entries of external data, such as {"location": "model.data"}; of other data,
            {"data_location": "DEFAULT"} if the message has this field
    """

    tensor: int
    field_name: str
    external: Mapping[str, str] = field(default_factory=dict)


class PackedFile:
    """A packed model; blocks are read and checked one at a time.

    `open_packed` makes one from a path. It keeps its mapping as long as it lives.
    """

    def __init__(self, data: Buffer, name: str) -> None:
        self._data, self.name = memoryview(data), name
        begin, length, checksum = self._read_header()
        if begin + length != len(self._data):
            raise self._damaged(
                f"it has {len(self._data):,} bytes and should have {begin + length:,}"
            )
        stored = self._data[begin:]
        if zlib.crc32(stored) != checksum:
            raise self._damaged("the checksum of its index differs")
        self._read_index(stored, begin)

    def _read_header(self) -> tuple[int, int, int]:
        if len(self._data) < HEADER_BYTES or not is_packed(self._data):
            raise InvalidModel(f"{self.name} is not a packed model\nonward pack writes such files")
        _, version, begin, length, checksum = HEADER.unpack_from(self._data)
        (expected,) = CHECKSUM.unpack_from(self._data, HEADER.size)
        if zlib.crc32(self._data[: HEADER.size]) != expected:
            raise self._damaged("the checksum of its header differs")
        if version > VERSION:
            raise InvalidModel(
                f"{self.name} has version {version} of the packed format, and this Onward reads "
                f"{VERSION}\ninstall a newer Onward"
            )
        return begin, length, checksum

    def _read_index(self, stored: memoryview, end: int) -> None:
        try:
            size = int.from_bytes(stored[:8], "little")
            if size > _LONGEST_INDEX:
                raise ChunkError(f"it would have {size:,} bytes")
            index = json.loads(inflate(stored[8:], size))
            self.tensors = [PackedBlock(**each) for each in index["tensors"]]
            self.graph = PackedBlock(**index["graph"])
            self.uses = [Use(**each) for each in index["uses"]]
            self.files: dict[str, int] = dict(index["files"])  # sizes of external data
            blocks = [*self.tensors, self.graph]
            is_inside = all(
                HEADER_BYTES <= b.begin <= b.begin + b.length <= end and b.size >= 0 for b in blocks
            )
            is_used = all(0 <= use.tensor < len(self.tensors) for use in self.uses)
        except (ChunkError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise self._damaged(f"its index cannot be read: {error}") from None
        if not is_inside or not is_used:
            raise self._damaged("its index names bytes that it does not have")

    def read_graph(self, most: int) -> bytes:
        """The model's message, whose tensors are numbers of blocks; at most `most` bytes."""
        if self.graph.size > most:
            raise InvalidModel(
                f"{self.name}: its graph has {self.graph.size:,} bytes, more than the limit of "
                f"{most:,}\nif you trust this model, raise ModelLimits.file_bytes"
            )
        try:
            return inflate(self._checked(self.graph, "its graph"), self.graph.size)
        except ChunkError as error:
            raise self._damaged(f"its graph: {error}") from None

    def read_tensor(self, number: int, name: str | None = None) -> Array:
        """The bytes of a tensor, checked by the CRC-32 of what is stored."""
        block = self.tensors[number]
        what = f"tensor {(name or block.name)!r}"
        try:
            return decode_tensor(self._checked(block, what), block.size)
        except ChunkError as error:
            raise self._damaged(f"{what}: {error}") from None

    def _checked(self, block: PackedBlock, what: str) -> memoryview:
        stored = self._data[block.begin : block.begin + block.length]
        if zlib.crc32(stored) != block.crc32:
            raise self._damaged(f"the checksum of {what} differs")
        return stored

    def _damaged(self, why: str) -> InvalidModel:
        return InvalidModel(f"{self.name} is damaged: {why}\n{_ADVICE}")


def open_packed(source: Any) -> PackedFile:
    """Open a packed model: a file is mapped, not read."""
    if isinstance(source, bytes):
        return PackedFile(source, "these bytes")
    path = Path(source)
    check_readable(path)
    with path.open("rb") as file:
        mapping, _ = map_file(file.fileno())
    return PackedFile(memoryview(mapping or b""), str(path))
