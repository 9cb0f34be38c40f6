"""JSON files that hold their own SHA-256, so that damage to them is detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from onward.checkpoints.disk import Disk

LONGEST = 64 << 20  # bytes; a line for each of hundreds of thousands of checkpoints


def encode_digested(body: dict[str, Any], *, ordered: bool = False) -> bytes:
    """The bytes of an object and its SHA-256; `ordered`: keys stay in their order.

    >>> decode_digested(encode_digested({"b": 1, "a": 2}))
    {'a': 2, 'b': 1}
    """
    digest = hashlib.sha256(_text(body, ordered)).hexdigest()
    return _text({**body, "sha256": digest}, ordered)


def _text(value: Any, ordered: bool) -> bytes:
    if ordered:
        return (json.dumps(value, separators=(",", ":")) + "\n").encode("ascii")
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode("ascii")


def decode_digested(data: bytes, *, ordered: bool = False) -> dict[str, Any]:
    """The object without its SHA-256; ValueError if it is damaged."""
    try:
        body: dict[str, Any] = json.loads(data)
        del body["sha256"]
        intact = encode_digested(body, ordered=ordered) == data
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a manifest") from error
    if not intact:
        raise ValueError("its SHA-256 does not match")
    return body


def read_digested_bytes(path: Path, disk: Disk) -> bytes:
    """All bytes of such a file; OSError, or ValueError if it is too long."""
    file = disk.open(path)
    try:
        size = disk.size(file)
        if size > LONGEST:
            raise ValueError(f"it has {size:,} bytes, and at most {LONGEST:,} are allowed")
        data = bytearray(size)
        disk.read(file, 0, memoryview(data))
        return bytes(data)
    finally:
        disk.close(file)
