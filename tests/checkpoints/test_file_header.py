"""Headers that somebody made up: whole by their SHA-256, and refused all the same."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.file_header import BLANK, Header, arrange, decode, encode
from onward.errors import CheckpointCorrupt, CheckpointError

DIGEST = "ab" * 32
ABOUT = {"version": 1, "step": None, "metric": None, "serial": 0}
ONE = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}


def forged(
    entries: dict[str, Any] | str, about: Any = ABOUT, tensors: Any = None, properties: Any = "{}"
) -> tuple[bytes, bytes]:
    """A header that says anything, with the SHA-256 that belongs to it."""
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
    return decode(prefix, text, 8 + len(text) + size, "here")


def test_a_forged_header_that_is_right_is_taken() -> None:
    assert decoded(4, ONE).slots["w"].shape == (4,)


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
def test_tensors_lie_one_after_another(entries: Any, size: int, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=text):
        decoded(size, entries)


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {**ONE["w"], **changes}}


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (entry(dtype="F4"), "the header is not a checkpoint's: KeyError"),
        (entry(shape=[5]), "4 bytes for U8 of shape"),
        (entry(shape=[-4]), "are not sizes"),
        (entry(shape=[True, 4]), "are not sizes"),
        (entry(shape=[1 << 62, 1 << 62, 0], data_offsets=[0, 0]), "a tensor of shape"),
        (entry(shape=[1] * 65), "a tensor of shape"),
        (entry(shape=4), "the header is not a checkpoint's: TypeError"),
        (entry(data_offsets=[0]), "not enough values"),
        ('"w":3', "the header is not a checkpoint's"),
        ('"w":' + "[" * 100_000, "the header is not a checkpoint's"),
    ],
)
def test_entries_that_make_no_sense_are_refused(entries: Any, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=text):
        decoded(4, entries, tensors={"w": DIGEST})


def test_names_that_are_there_twice_are_refused() -> None:
    twice = json.dumps(ONE)[1:-1] + "," + json.dumps(ONE)[1:-1]
    with pytest.raises(CheckpointCorrupt, match="a name that is there twice"):
        decoded(4, twice, tensors={"w": DIGEST})
    with pytest.raises(CheckpointCorrupt, match="a name that is there twice"):
        decoded(4, ONE, tensors=f'{{"w":"{DIGEST}","w":"{DIGEST}"}}')


def test_a_tensor_without_a_digest_is_refused() -> None:
    with pytest.raises(CheckpointCorrupt, match="the manifest and the tensors differ"):
        decoded(4, ONE, tensors={})


def test_an_unknown_version_is_said_to_be_one() -> None:
    with pytest.raises(CheckpointError) as caught:
        decoded(4, ONE, about={**ABOUT, "version": 2})
    assert str(caught.value) == (
        "here: version 2 of the format, and this Onward reads 1\n"
        "read it with the Onward that wrote it, or a newer one"
    )


def test_every_tensor_is_aligned_and_keeps_its_place_in_the_order() -> None:
    given = {
        "b": np.ones(3, np.int8),
        "w": np.ones(5, np.float32),
        "d": np.ones(2),
        "h": np.ones(1, np.float16),
    }
    slots = arrange(given)
    assert list(slots) == list(given)
    for name, slot in slots.items():
        assert slot.begin % given[name].itemsize == 0
    start, _ = encode(Header(slots, {}))
    assert len(start) % 8 == 0
