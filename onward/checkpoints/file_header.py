"""The header of a checkpoint file: safetensors' own, and in its metadata a manifest of SHA-256.

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {"onward.header": SHA-256, ...}, tensor: {dtype, shape, ...}}
    data       the tensors' bytes, little-endian, one after another without a gap

"onward.header" is the SHA-256 of the length and the header, taken while it was 64 zeros itself. The
header holds the SHA-256 of each tensor, so this one number stands for every byte of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import CheckpointCorrupt, CheckpointError
from onward.lazy import LazyModule

ml_dtypes = LazyModule("ml_dtypes")  # for types that numpy does not have

VERSION = 1
LONGEST = 100 << 20  # bytes of a header; safetensors' own limit
BLANK = "0" * 64
_OPENING = b'{"__metadata__":{"onward.header":"'
_MOST_AXES = 64  # numpy's own limit
_DEEPEST = 100  # lists in lists; far below where JSON's readers give up

_PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
_EXTENDED = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
_ITEM_SIZES = {**{code: np.dtype(kind).itemsize for code, kind in _PLAIN.items()},
               "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
_CODES = {np.dtype(kind).name: code for code, kind in _PLAIN.items()} | {
    name: code for code, name in _EXTENDED.items()
}


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in the data, and what it is."""

    code: str  # safetensors' name of its type
    shape: tuple[int, ...]
    begin: int
    end: int
    sha256: str = BLANK

    @property
    def dtype(self) -> str:
        """numpy's name of its type."""
        return np.dtype(_PLAIN[self.code]).name if self.code in _PLAIN else _EXTENDED[self.code]


@dataclass(frozen=True)
class Header:
    """All that a file says before its tensors; `slots` in the order in which they were given."""

    slots: dict[str, Slot]
    properties: dict[str, Any]
    step: int | None = None
    metric: float | None = None
    serial: int = 0  # which save into its folder it was
    sha256: str = BLANK
    length: int = 0  # bytes before the first tensor's


def numpy_type(code: str) -> np.dtype[Any]:
    """The type as numpy has it, which for some takes ml_dtypes."""
    if code in _PLAIN:
        return np.dtype(_PLAIN[code])
    try:
        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _EXTENDED[code]))
    except ImportError as error:
        raise CheckpointError(
            f"tensors of {_EXTENDED[code]} need a package that is not here\n"
            "install it with: pip install ml_dtypes"
        ) from error
    return extended


def arrange(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Slot]:
    """A place in the data for each tensor; the widest types first, so that all are aligned."""
    codes = {name: _code(name, tensor) for name, tensor in tensors.items()}
    slots, begin = {}, 0
    for name in sorted(codes, key=lambda name: -_ITEM_SIZES[codes[name]]):
        end = begin + tensors[name].nbytes
        slots[name] = Slot(codes[name], tensors[name].shape, begin, end)
        begin = end
    return {name: slots[name] for name in tensors}


def _code(name: str, tensor: Any) -> str:
    if not isinstance(name, str) or name == "__metadata__":
        raise CheckpointError(f"a tensor's name is a text other than '__metadata__', not {name!r}")
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


def encode(header: Header) -> tuple[bytes, str]:
    """The bytes before the data, and their SHA-256."""
    text = _text(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise CheckpointError(
            f"a header of {len(text):,} bytes, more than the {LONGEST:,} that safetensors allows\n"
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
        "onward.tensors": _json({name: slot.sha256 for name, slot in header.slots.items()}),
        "onward.properties": _json(header.properties),
    }
    entries = {
        name: {"dtype": slot.code, "shape": slot.shape, "data_offsets": [slot.begin, slot.end]}
        for name, slot in sorted(header.slots.items(), key=lambda item: item[1].begin)
    }
    return _json({"__metadata__": metadata, **entries})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def header_length(prefix: bytes, size: int, where: str) -> int:
    """How long the header is, if there can be one so long."""
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(size - 8, LONGEST):
        raise CheckpointCorrupt(
            f"{where}: the header does not fit: the file is damaged or cut short, or of another "
            f"kind ({size:,} bytes)"
        )
    return int(length)


def decode(prefix: bytes, text: bytes, size: int, where: str) -> Header:
    """The header of a file of so many bytes, if it is as it was written."""
    digest = _check_digest(prefix, text, where)
    try:
        found: dict[str, Any] = json.loads(text, object_pairs_hook=_no_twins)
        metadata = found.pop("__metadata__")
        about = json.loads(metadata["onward.checkpoint"])
        version = about["version"]
        if version != VERSION:
            raise CheckpointError(
                f"{where}: version {version} of the format, and this Onward reads {VERSION}\n"
                "read it with the Onward that wrote it, or a newer one"
            )
        digests = json.loads(metadata["onward.tensors"], object_pairs_hook=_no_twins)
        if set(digests) != set(found):
            raise ValueError("the manifest and the tensors differ")
        slots = {name: _slot(found[name], digests[name]) for name in digests}
        properties = json.loads(metadata["onward.properties"])
        header = Header(slots, properties, about["step"], about["metric"], about["serial"],
                        digest, 8 + len(text))  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointCorrupt(f"{where}: the header is not a checkpoint's: {error!r}") from error
    _check_places(header, size, where)
    return header


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
        raise CheckpointCorrupt(f"{where}: the header is damaged: its SHA-256 is another one")
    return digest


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name that is there twice")
    return entries


def _slot(entry: Any, digest: Any) -> Slot:
    code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    sizes = (*shape, begin, end)
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(f"{str(sizes)[:80]} are not sizes")
    if len(shape) > _MOST_AXES or math.prod(size or 1 for size in shape) >= 1 << 59:
        raise ValueError(f"a tensor of shape {str(shape)[:80]}")
    if end - begin != math.prod(shape) * _ITEM_SIZES[code]:
        raise ValueError(f"{end - begin} bytes for {code} of shape {str(shape)[:80]}")
    return Slot(code, shape, begin, end, str(digest))


def _check_places(header: Header, size: int, where: str) -> None:
    """The tensors follow each other without overlap or gap, and the file ends with the last."""
    place, before = 0, "the header"
    for name, slot in sorted(header.slots.items(), key=lambda item: (item[1].begin, item[1].end)):
        if slot.begin != place:
            kind = "overlap" if slot.begin < place else "leave a gap between them"
            raise CheckpointCorrupt(f"{where}: {before} and tensor {name!r} {kind}")
        if header.length + slot.end > size:
            raise CheckpointCorrupt(
                f"{where}: cut short: tensor {name!r} ends at byte {header.length + slot.end:,} "
                f"of {size:,}"
            )
        place, before = slot.end, f"tensor {name!r}"
    if header.length + place != size:
        raise CheckpointCorrupt(
            f"{where}: {size - header.length - place:,} bytes follow the last tensor"
        )
