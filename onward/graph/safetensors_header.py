"""Read the header of a safetensors file: the type, shape and place of each tensor.

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {...}, tensor: {"dtype", "shape", "data_offsets"}, ...}
    data       the tensors' bytes, little-endian, one after another without a gap

The safetensors package copies tensors out and does not say where they are, so that neither mapping
a file nor checking it piece by piece can be built on it. This module needs only numpy: devices
that train read checkpoints with it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.graph.dtypes import BY_SAFETENSORS

LONGEST_HEADER = 100 << 20  # bytes; the safetensors package's limit, too
_MOST_AXES = 64  # numpy's limit

DTYPE_NAMES = {code: each.numpy for code, each in BY_SAFETENSORS.items()}
ITEM_SIZES = {code: each.bits // 8 for code, each in BY_SAFETENSORS.items()}


class HeaderError(ValueError):
    """The bytes are not a safetensors header, or not one that fits its file."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's type (safetensors' code), shape and place: offsets from the start of the data."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> str:
        """numpy's name of the type."""
        return DTYPE_NAMES[self.code]


def numpy_type(code: str) -> np.dtype[Any]:
    """The numpy type of a safetensors code; ImportError if it needs ml_dtypes, which is missing."""
    found = BY_SAFETENSORS[code]
    return found.dtype.newbyteorder("<") if found.is_in_numpy else found.dtype


def header_length(prefix: bytes, size: int) -> int:
    """The header's length from a file's first 8 bytes; `size` is the file's."""
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(size - 8, LONGEST_HEADER):
        raise HeaderError(f"the header does not fit into the file's {size:,} bytes")
    return int(length)


def parse_header(text: bytes, size: int) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The entries and the metadata of a header, checked against a file of `size` bytes."""
    try:
        found = json.loads(text, object_pairs_hook=unique_names)
        metadata = found.pop("__metadata__", {})
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise HeaderError(f"the header is not a JSON object: {error}") from error
    entries = {}
    for name, entry in found.items():
        try:
            entries[name] = _parse_entry(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise HeaderError(f"the entry of {name!r} is broken: {error!r}") from error
    _check_places(entries, 8 + len(text), size)
    return entries, metadata


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are unique; for json.loads(object_pairs_hook=...)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _parse_entry(entry: Any) -> TensorEntry:
    code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    sizes = (*shape, begin, end)
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(f"{str(sizes)[:80]} are not sizes")
    if len(shape) > _MOST_AXES or math.prod(size or 1 for size in shape) >= 1 << 59:
        raise ValueError(f"a tensor of shape {str(shape)[:80]}")
    if end - begin != math.prod(shape) * ITEM_SIZES[code]:
        raise ValueError(f"{end - begin} bytes for {code} of shape {str(shape)[:80]}")
    return TensorEntry(code, shape, begin, end)


def _check_places(entries: Mapping[str, TensorEntry], start: int, size: int) -> None:
    """The tensors follow each other without overlap or gap, and the file ends with the last."""
    place, before = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != place:
            kind = "overlap" if entry.begin < place else "leave a gap between them"
            raise HeaderError(f"{before} and tensor {name!r} {kind}")
        if start + entry.end > size:
            raise HeaderError(
                f"cut short: tensor {name!r} ends at byte {start + entry.end:,} of {size:,}"
            )
        place, before = entry.end, f"tensor {name!r}"
    if start + place != size:
        raise HeaderError(f"{size - start - place:,} bytes follow the last tensor")
