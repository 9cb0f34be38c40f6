"""The header of a checkpoint file: a safetensors header whose metadata holds SHA-256 digests.

    {"__metadata__": {"onward.header": SHA-256, "onward.tensors": SHA-256 of each tensor, ...}, ...}

"onward.header" is the SHA-256 of the length and the header, with 64 zeros in its own place. The
header holds the digest of each tensor, so this one digest covers every byte of the file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import CheckpointCorrupt, CheckpointError
from onward.graph.safetensors_header import (
    DTYPE_NAMES,
    ITEM_SIZES,
    LONGEST_HEADER,
    HeaderError,
    TensorEntry,
    parse_header,
    unique_names,
)

VERSION = 1
BLANK = "0" * 64
_OPENING = b'{"__metadata__":{"onward.header":"'
_DEEPEST = 100  # nested lists; far below the limit of JSON readers
_CODES = {name: code for code, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class Header:
    """What a checkpoint file holds in front of its tensors; `entries` in the order of saving."""

    entries: dict[str, TensorEntry]
    properties: dict[str, Any]
    step: int | None = None
    metric: float | None = None
    serial: int = 0  # the number of the save in its folder
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of each tensor
    sha256: str = BLANK
    length: int = 0  # bytes in front of the first tensor


def assign_places(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, TensorEntry]:
    """Give each tensor a place in the data: the widest types first, so that all are aligned."""
    codes = {name: type_code(name, tensor) for name, tensor in tensors.items()}
    entries, begin = {}, 0
    for name in sorted(codes, key=lambda name: -ITEM_SIZES[codes[name]]):
        end = begin + tensors[name].nbytes
        entries[name] = TensorEntry(codes[name], tensors[name].shape, begin, end)
        begin = end
    return {name: entries[name] for name in tensors}


def type_code(name: str, tensor: Any) -> str:
    """The safetensors code of a tensor's type; CheckpointError if a checkpoint cannot hold it."""
    if not isinstance(name, str) or name == "__metadata__":
        raise CheckpointError(
            f"a tensor's name must be a text other than '__metadata__', not {name!r}"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"the tensor's name {name!r} is not valid Unicode") from error
    if not isinstance(tensor, np.ndarray):
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__}, but a checkpoint holds numpy arrays\n"
            "convert it with numpy.asarray, or put it into the properties"
        )
    if tensor.dtype.name not in _CODES:
        raise CheckpointError(
            f"{name!r} is of {tensor.dtype}, which a checkpoint cannot hold\n"
            f"it can hold {', '.join(sorted(_CODES))}"
        )
    return _CODES[tensor.dtype.name]


def check_properties(value: Any, where: str = "properties", depth: int = 0) -> None:
    """Properties are JSON; tuples come back as lists."""
    if depth > _DEEPEST:
        raise CheckpointError(f"the properties are nested more than {_DEEPEST} deep")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}, but JSON's keys are texts")
            check_properties(inner, f"{where}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            check_properties(inner, f"{where}[{index}]", depth + 1)
    elif not (value is None or isinstance(value, (str, int, float))):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which JSON does not have\n"
            "properties are texts, numbers, booleans, None, lists and dictionaries of them; "
            "arrays are tensors"
        )


def encode_header(header: Header) -> tuple[bytes, str]:
    """The bytes before the data, and their SHA-256."""
    text = _text(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise CheckpointError(
            f"a header of {len(text):,} bytes, more than the {LONGEST_HEADER:,} that safetensors "
            "allows\n"
            "keep large properties as tensors"
        )
    data = bytearray(struct.pack("<Q", len(text)) + text)
    digest = hashlib.sha256(data).hexdigest()
    start = 8 + len(_OPENING)
    data[start : start + len(BLANK)] = digest.encode()
    return bytes(data), digest


def _text(header: Header) -> str:
    about = {"version": VERSION, "step": header.step, "metric": header.metric,
             "serial": header.serial}  # fmt: skip
    metadata = {
        "onward.header": BLANK,
        "onward.checkpoint": _json(about),
        "onward.tensors": _json({name: header.digests.get(name, BLANK) for name in header.entries}),
        "onward.properties": _json(header.properties),
    }
    entries = {
        name: {"dtype": entry.code, "shape": entry.shape, "data_offsets": [entry.begin, entry.end]}
        for name, entry in sorted(header.entries.items(), key=lambda item: item[1].begin)
    }
    return _json({"__metadata__": metadata, **entries})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def decode_header(prefix: bytes, text: bytes, size: int, where: str) -> Header:
    """The header of a file of `size` bytes; CheckpointCorrupt if it is not as it was written."""
    digest = _check_digest(prefix, text, where)
    try:
        entries, metadata = parse_header(text, size)
    except HeaderError as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error
    try:
        about = json.loads(metadata["onward.checkpoint"])
        version = about["version"]
        if version != VERSION:
            raise CheckpointError(
                f"{where}: version {version} of the format, and this Onward reads {VERSION}\n"
                "read it with the Onward that wrote it, or a newer one"
            )
        digests = json.loads(metadata["onward.tensors"], object_pairs_hook=unique_names)
        if set(digests) != set(entries):
            raise ValueError("the digests and the tensors have different names")
        properties = json.loads(metadata["onward.properties"])
        return Header({name: entries[name] for name in digests}, properties, about["step"],
                      about["metric"], about["serial"], digests, digest, 8 + len(text))  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointCorrupt(f"{where}: the header is not a checkpoint's: {error!r}") from error


def _check_digest(prefix: bytes, text: bytes, where: str) -> str:
    start = len(_OPENING)
    given = text[start : start + len(BLANK)]
    if not text.startswith(_OPENING):
        raise CheckpointCorrupt(
            f"{where}: the header is damaged, or the file is not a checkpoint of Onward's"
        )
    blanked = text[:start] + BLANK.encode() + text[start + len(BLANK) :]
    digest = hashlib.sha256(prefix + blanked).hexdigest()
    if given != digest.encode():
        raise CheckpointCorrupt(f"{where}: the header is damaged: its SHA-256 does not match")
    return digest
