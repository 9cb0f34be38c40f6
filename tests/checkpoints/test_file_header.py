"""Forged headers with a correct SHA-256 are refused where the rest of them is wrong."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.file_header import (
    BLANK,
    Header,
    assign_places,
    decode_header,
    encode_header,
)
from onward.errors import CheckpointCorrupt, CheckpointError

DIGEST = "ab" * 32
ABOUT = {"version": 1, "step": None, "metric": None, "serial": 0}
ONE = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}


def forged(
    entries: dict[str, Any] | str, about: Any = ABOUT, tensors: Any = None, properties: Any = "{}"
) -> tuple[bytes, bytes]:
    """A header with any contents and the SHA-256 of them."""
    digests = dict.fromkeys(entries, DIGEST) if tensors is None else tensors
    metadata = {
        "onward.header": BLANK,
        "onward.checkpoint": json.dumps(about),
        "onward.tensors": digests if isinstance(digests, str) else json.dumps(digests),
        "onward.properties": properties,
    }
    inner = entries if isinstance(entries, str) else json.dumps(entries)[1:-1]
    text = json.dumps({"__metadata__": metadata}, separators=(",", ":"))[:-1]
    raw = (text + ("," if inner else "") + inner + "}").encode()
    prefix = struct.pack("<Q", len(raw))
    digest = hashlib.sha256(prefix + raw).hexdigest()
    return prefix, raw.replace(BLANK.encode(), digest.encode(), 1)


def decoded(size: int, *arguments: Any, **named: Any) -> Header:
    prefix, text = forged(*arguments, **named)
    return decode_header(prefix, text, 8 + len(text) + size, "here")


def test_correct_header_is_read() -> None:
    assert decoded(4, ONE).entries["w"].shape == (4,)


def two(first: tuple[int, int], second: tuple[int, int]) -> dict[str, Any]:
    return {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, (begin, end) in zip("ab", (first, second))
    }


@pytest.mark.parametrize(
    ("entries", "size", "text"),
    [
        (two((0, 4), (0, 4)), 4, "here: tensor 'a' and tensor 'b' overlap"),
        (two((0, 4), (2, 6)), 6, "here: tensor 'a' and tensor 'b' overlap"),
        (two((0, 4), (5, 6)), 6, "tensor 'a' and tensor 'b' leave a gap between them"),
        (two((1, 4), (4, 6)), 6, "the header and tensor 'a' leave a gap between them"),
        (two((0, 4), (4, 6)), 5, "cut short: tensor 'b' ends at byte"),
        (two((0, 4), (4, 6)), 9, "3 bytes follow the last tensor"),
    ],
)
def test_tensors_with_overlap_or_gap_are_refused(entries: Any, size: int, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=text):
        decoded(size, entries)


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {**ONE["w"], **changes}}


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (entry(dtype="F4"), "the entry of 'w' is broken: KeyError"),
        (entry(shape=[5]), "4 bytes for U8 of shape"),
        (entry(shape=[-4]), "are not sizes"),
        (entry(shape=[True, 4]), "are not sizes"),
        (entry(shape=[1 << 62, 1 << 62, 0], data_offsets=[0, 0]), "a tensor of shape"),
        (entry(shape=[1] * 65), "a tensor of shape"),
        (entry(shape=4), "the entry of 'w' is broken: TypeError"),
        (entry(data_offsets=[0]), "not enough values"),
        ('"w":3', "the entry of 'w' is broken"),
        ('"w":' + "[" * 100_000, "the header is not a JSON object"),
    ],
)
def test_broken_entries_are_refused(entries: Any, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=text):
        decoded(4, entries, tensors={"w": DIGEST})


def test_repeated_names_are_refused() -> None:
    twice = json.dumps(ONE)[1:-1] + "," + json.dumps(ONE)[1:-1]
    with pytest.raises(CheckpointCorrupt, match="a name occurs twice"):
        decoded(4, twice, tensors={"w": DIGEST})
    with pytest.raises(CheckpointCorrupt, match="a name occurs twice"):
        decoded(4, ONE, tensors=f'{{"w":"{DIGEST}","w":"{DIGEST}"}}')


def test_tensor_without_digest_is_refused() -> None:
    with pytest.raises(CheckpointCorrupt, match="the digests and the tensors have different names"):
        decoded(4, ONE, tensors={})


def test_unknown_version_is_refused() -> None:
    with pytest.raises(CheckpointError) as caught:
        decoded(4, ONE, about={**ABOUT, "version": 2})
    assert str(caught.value) == (
        "here: version 2 of the format, and this Onward reads 1\n"
        "read it with the Onward that wrote it, or a newer one"
    )


def test_tensors_are_aligned_and_keep_their_order() -> None:
    given = {
        "b": np.ones(3, np.int8),
        "w": np.ones(5, np.float32),
        "d": np.ones(2),
        "h": np.ones(1, np.float16),
    }
    entries = assign_places(given)
    assert list(entries) == list(given)
    for name, entry in entries.items():
        assert entry.begin % given[name].itemsize == 0
    start, _ = encode_header(Header(entries, {}))
    assert len(start) % 8 == 0
