"""Read a model's metadata and a checksum of its graph from its bytes."""

from __future__ import annotations

import zlib

from onward.graph.scan.protobuf import fields, text

_GRAPH, _PROPS = 7 << 3 | 2, 14 << 3 | 2  # fields of ModelProto
_KEY, _VALUE = 1 << 3 | 2, 2 << 3 | 2  # of StringStringEntryProto


def metadata_of(model: bytes) -> dict[str, str]:
    """A model's metadata_props."""
    found = {}
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _PROPS:
            parts = {t: text(model, a, b) for t, a, b in fields(model, start, end)}
            found[parts.get(_KEY, "")] = parts.get(_VALUE, "")
    return found


def graph_checksum(model: bytes) -> int:
    """A checksum of a model's graph, whatever its metadata."""
    found = 0
    for tag, start, end in fields(model, 0, len(model)):
        if tag == _GRAPH:
            found = zlib.crc32(memoryview(model)[start:end], found)
    return found
