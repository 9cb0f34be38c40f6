"""The manifest of a sharded checkpoint: what is hostile or of another version is refused."""

from __future__ import annotations

from typing import Any

import pytest

from onward.checkpoints.digested_json import encode_digested
from onward.checkpoints.sharded.part_files import PartSummary
from onward.checkpoints.sharded.shard_manifest import (
    ShardManifest,
    decode_shard_manifest,
    encode_shard_manifest,
    join_parts,
)
from onward.checkpoints.tensor_files import TensorMetadata
from onward.errors import CheckpointError

SPEC = TensorMetadata("float32", (2, 3))
PARTS = [
    PartSummary("a" * 64, {"w": SPEC}, {"w": [(0, 2), (4, 6)]}),
    PartSummary("b" * 64, {"w": SPEC}, {"w": [(2, 4)]}),
]
MANIFEST = ShardManifest(
    step=3, serial=5, token=2, owner="it", metric=0.1, properties={"z": 1, "a": {"y": [1.5]}},
    files={"part-00000.safetensors": "a" * 64, "part-00001.safetensors": "b" * 64},
    tensors=join_parts(PARTS),
)  # fmt: skip


def test_encode_then_decode_is_identity() -> None:
    found = decode_shard_manifest(encode_shard_manifest(MANIFEST))
    assert found == MANIFEST and list(found.properties) == ["z", "a"]
    assert [(p.start, p.file) for p in found.tensors["w"].pieces] == [
        (0, "part-00000.safetensors"), (2, "part-00001.safetensors"), (4, "part-00000.safetensors"),
    ]  # fmt: skip


def test_every_flipped_bit_of_a_manifest_is_detected() -> None:
    data = encode_shard_manifest(MANIFEST)
    for bit in range(0, 8 * len(data), 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"not a manifest|does not match"):
            decode_shard_manifest(bytes(changed))


def body(**changes: Any) -> bytes:
    row = {
        "name": "w",
        "dtype": "float32",
        "shape": [2],
        "pieces": [["part-00000.safetensors", 0, 2]],
    }
    known = {
        "version": 1, "step": 1, "serial": 1, "token": 1, "owner": "", "metric": None,
        "properties": {}, "files": {"part-00000.safetensors": "a"},
        "tensors": [{**row, **changes.pop("row", {})}],
    }  # fmt: skip
    return encode_digested({**known, **changes}, ordered=True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"files": {"../part-00000.safetensors": "a"}}, "another name than a part's"),
        ({"files": {"/etc/passwd": "a"}}, "another name than a part's"),
        ({"row": {"pieces": [["part-00001.safetensors", 0, 2]]}}, "the entry of 'w' is broken"),
        ({"row": {"pieces": [["part-00000.safetensors", 0, -2]]}}, "the entry of 'w' is broken"),
        ({"row": {"shape": [2.0]}}, "the entry of 'w' is broken"),
        ({"row": {"dtype": "object"}}, "the entry of 'w' is broken"),
        ({"row": {"shape": [1 << 60]}}, r"elements \[2, 1152921504606846976\) of tensor 'w' are"),
        ({"tensors": 3}, "it is not a manifest"),
    ],
)
def test_hostile_manifests_are_refused(changes: Any, text: str) -> None:
    decode_shard_manifest(body())
    with pytest.raises(ValueError, match=text):
        decode_shard_manifest(body(**changes))


def test_unknown_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"of version 9, and this Onward reads 1\nuse the"):
        decode_shard_manifest(body(version=9))
