"""The manifest is read as it was written, and any damage is detected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.checkpoints import digested_json, manifest
from onward.checkpoints.digested_json import encode_digested
from onward.checkpoints.disk import DISK
from onward.checkpoints.manifest import (
    ManifestEntry,
    decode_manifest,
    encode_manifest,
    file_name,
    finite_or_none,
    read_catalog,
)
from onward.errors import CheckpointError

ENTRIES = [
    ManifestEntry(10, 1, "ab" * 32, 0.5),
    ManifestEntry(20, 2, "cd" * 32),
    ManifestEntry(30, 3, "ef" * 32, 1e-300),
]


def test_encode_then_decode_is_identity() -> None:
    assert (
        decode_manifest(encode_manifest(ENTRIES)) == ENTRIES
        and decode_manifest(encode_manifest([])) == []
    )
    assert (
        json.loads(encode_manifest(ENTRIES))["checkpoints"][0]["file"]
        == "step-000000000010.safetensors"
    )


def test_every_flipped_bit_and_truncation_is_detected() -> None:
    data = encode_manifest(ENTRIES[:1])
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(
                ValueError, match=r"its SHA-256 does not match|it is not a manifest"
            ):
                decode_manifest(bytes(changed))
        with pytest.raises(ValueError, match=r"it is not a manifest|SHA-256"):
            decode_manifest(data[:place])


@pytest.mark.parametrize("data", [b"3", b"[]", b"[" * 100_000, b"\xff", b'{"sha256": ""}'])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not a manifest|its SHA-256 does not match"):
        decode_manifest(data)


def test_unknown_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"is of version 9, and this Onward reads 1\nuse the"):
        decode_manifest(encode_digested({"version": 9, "checkpoints": []}))


def test_very_large_steps_have_longer_file_names(tmp_path: Path) -> None:
    assert file_name(10**13) == "step-10000000000000.safetensors"
    (tmp_path / file_name(10**13)).write_bytes(b"")
    assert list(read_catalog(tmp_path, DISK).unread) == [file_name(10**13)]


def test_non_finite_metrics_become_none() -> None:
    assert finite_or_none(0.0) == 0.0
    assert (
        finite_or_none(float("nan"))
        is finite_or_none(float("-inf"))
        is finite_or_none(None)
        is None
    )


def test_too_large_manifest_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(digested_json, "LONGEST", 10)
    (tmp_path / manifest.NAME).write_bytes(encode_manifest(ENTRIES))
    assert read_catalog(tmp_path, DISK).entries == []
    assert (
        "is damaged: it has" in caplog.text and "bytes, and at most 10 are allowed" in caplog.text
    )
