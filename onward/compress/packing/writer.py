"""PackedWriter: write a packed file, one tensor at a time; equal tensors are stored once."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from onward.compress.packing.chunk_encoding import deflate_best, encode_tensor
from onward.graph.packed.container import CHECKSUM, HEADER, HEADER_BYTES, VERSION, PackedBlock, Use
from onward.graph.packed.recognize import MAGIC

Array = np.ndarray[Any, Any]


class PackedWriter:
    """Writes tensors, then the graph, then the index, to a file that can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._file.write(bytes(HEADER_BYTES))  # the header is known at the end
        self._place = HEADER_BYTES
        self._blocks: list[PackedBlock] = []
        self._number_of: dict[tuple[str, int], int] = {}

    def add_tensor(self, name: str, data: Array, dtype: ir.DataType) -> int:
        """Write a tensor's bytes unless an equal one was written; return its number."""
        digest = hashlib.sha256(data.data).hexdigest()
        key = (digest, len(data))
        if key not in self._number_of:
            self._number_of[key] = len(self._blocks)
            self._blocks.append(self._write(name, encode_tensor(data, dtype), len(data), digest))
        return self._number_of[key]

    def finish(self, graph: bytes, uses: Sequence[Use], files: Mapping[str, int]) -> None:
        """Write the graph, the index and the header."""
        digest = hashlib.sha256(graph).hexdigest()
        block = self._write("", [deflate_best(graph)], len(graph), digest)
        index = {
            "tensors": [asdict(each) for each in self._blocks],
            "graph": asdict(block),
            "uses": [asdict(each) for each in uses],
            "files": dict(files),
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        stored = len(text).to_bytes(8, "little") + deflate_best(text)
        self._file.write(stored)
        header = HEADER.pack(MAGIC, VERSION, self._place, len(stored), zlib.crc32(stored))
        self._file.seek(0)
        self._file.write(header + CHECKSUM.pack(zlib.crc32(header)))

    def _write(self, name: str, parts: Iterable[bytes], size: int, digest: str) -> PackedBlock:
        begin, checksum = self._place, 0
        for part in parts:
            self._file.write(part)
            self._place += len(part)
            checksum = zlib.crc32(part, checksum)
        length = self._place - begin
        return PackedBlock(
            name=name, begin=begin, length=length, crc32=checksum, size=size, sha256=digest
        )
