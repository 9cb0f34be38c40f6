"""The manifest: written and read alike, and every damage to it noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.checkpoints.disk import DISK
from onward.checkpoints.manifest import (
    Entry,
    _sealed,
    dump,
    file_of,
    finite,
    parse,
    read_catalog,
)
from onward.errors import CheckpointError

ENTRIES = [Entry(10, 1, "ab" * 32, 0.5), Entry(20, 2, "cd" * 32), Entry(30, 3, "ef" * 32, 1e-300)]


def test_what_is_parsed_is_what_was_dumped() -> None:
    assert parse(dump(ENTRIES)) == ENTRIES and parse(dump([])) == []
    assert json.loads(dump(ENTRIES))["checkpoints"][0]["file"] == "step-000000000010.safetensors"


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data = dump(ENTRIES[:1])
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(
                ValueError, match=r"its SHA-256 is another one|it is not a manifest"
            ):
                parse(bytes(changed))
        with pytest.raises(ValueError, match=r"it is not a manifest|SHA-256"):
            parse(data[:place])


@pytest.mark.parametrize("data", [b"3", b"[]", b"[" * 100_000, b"\xff", b'{"sha256": ""}'])
def test_what_is_no_manifest_is_noticed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not a manifest|its SHA-256 is another one"):
        parse(data)


def test_an_unknown_version_is_said_to_be_one() -> None:
    with pytest.raises(CheckpointError, match=r"is of version 9, and this Onward reads 1\nuse the"):
        parse(_sealed({"version": 9, "checkpoints": []}))


def test_steps_beyond_the_width_of_a_name_have_names_too(tmp_path: Path) -> None:
    assert file_of(10**13) == "step-10000000000000.safetensors"
    (tmp_path / file_of(10**13)).write_bytes(b"")
    assert list(read_catalog(tmp_path, DISK).unread) == [file_of(10**13)]


def test_metrics_that_compare_with_nothing_are_none() -> None:
    assert finite(0.0) == 0.0
    assert finite(float("nan")) is finite(float("-inf")) is finite(None) is None
