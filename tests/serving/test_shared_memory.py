"""Shared memory regions: names, bounds, and memory of clients that behave badly."""

from __future__ import annotations

import os
import stat
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from onward.errors import NotSupported, RequestInvalid
from onward.serving.shared_memory import MAX_REGIONS, SharedMemoryRegions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(64)))
    return tmp_path


@pytest.fixture
def regions(folder: Path) -> SharedMemoryRegions:
    return SharedMemoryRegions(folder)


def test_a_region_is_read_and_written_at_its_offset(
    regions: SharedMemoryRegions, folder: Path
) -> None:
    regions.register("part", "/data", 8, 16)
    assert bytes(regions.read("part", 2, 3)) == bytes([10, 11, 12])
    regions.write("part", 14, memoryview(b"\xfe\xff"))
    assert (folder / "data").read_bytes()[20:26] == bytes([20, 21, 0xFE, 0xFF, 24, 25])
    regions.close()


def test_nothing_may_be_read_and_written(regions: SharedMemoryRegions) -> None:
    regions.register("part", "data", 0, 64)
    assert len(regions.read("part", 64, 0)) == 0
    regions.write("part", 64, b"")


def test_status_lists_regions(regions: SharedMemoryRegions) -> None:
    regions.register("a", "/data", 0, 64)
    regions.register("b", "data", 8, 8)
    b = {"name": "b", "key": "data", "offset": 8, "byte_size": 8}
    assert regions.status("b") == [b]
    assert regions.status() == [{"name": "a", "key": "/data", "offset": 0, "byte_size": 64}, b]
    regions.unregister("a")
    regions.unregister("never registered")
    assert regions.status() == [b]
    regions.unregister()
    assert regions.status() == []


def test_the_memory_of_another_process_is_shared() -> None:
    memory = shared_memory.SharedMemory(create=True, size=16)
    try:
        memory.buf[:4] = b"ping"
        regions = SharedMemoryRegions()
        regions.register("m", memory.name, 0, 16)
        assert bytes(regions.read("m", 0, 4)) == b"ping"
        regions.write("m", 4, b"pong")
        assert bytes(memory.buf[:8]) == b"pingpong"
        regions.close()
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 65), (64, 1), (-1, 4), (0, -1), (1 << 63, 1), (0, 1 << 64)]
)
def test_a_part_outside_of_a_region_is_refused(
    regions: SharedMemoryRegions, offset: int, size: int
) -> None:
    regions.register("all", "data", 0, 64)
    with pytest.raises(RequestInvalid, match="Invalid offset"):
        regions.read("all", offset, size)
    with pytest.raises(RequestInvalid, match="Invalid offset"):
        regions.check("all", offset, size)
    with pytest.raises(RequestInvalid, match="Invalid offset"):
        regions.write("all", 60, b"12345")


def test_an_unknown_region_is_refused(regions: SharedMemoryRegions) -> None:
    for act in (regions.status, lambda name: regions.read(name, 0, 1)):
        with pytest.raises(RequestInvalid, match="Unable to find shared memory region: 'x'"):
            act("x")


@pytest.mark.parametrize("key", ["", "/", "..", "/..", "../data", "/a/b", "a\0b", "n" * 256])
def test_a_key_that_leaves_the_folder_is_refused(regions: SharedMemoryRegions, key: str) -> None:
    with pytest.raises(RequestInvalid, match="not a valid name"):
        regions.register("r", key, 0, 1)


def test_links_folders_and_pipes_are_refused(regions: SharedMemoryRegions, folder: Path) -> None:
    (folder / "link").symlink_to(folder / "data")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for key in ("link", "folder", "pipe", "missing"):
        with pytest.raises(RequestInvalid, match="Unable to open shared memory region"):
            regions.register("r", key, 0, 1)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (0, 65, "ends at 65"),
        (-1, 4, "offset"),
        (0, 0, "the size 1 or more"),
        (1 << 63, 8, "ends at"),
    ],
)
def test_a_region_must_be_within_its_memory(
    regions: SharedMemoryRegions, offset: int, size: int, text: str
) -> None:
    with pytest.raises(RequestInvalid, match=text):
        regions.register("r", "data", offset, size)


def test_a_name_is_registered_once(regions: SharedMemoryRegions) -> None:
    regions.register("r", "data", 0, 1)
    with pytest.raises(RequestInvalid, match="already in manager"):
        regions.register("r", "data", 0, 1)
    with pytest.raises(RequestInvalid, match="needs a name"):
        regions.register("", "data", 0, 1)


def test_the_number_of_regions_is_limited(
    regions: SharedMemoryRegions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.serving.shared_memory.MAX_REGIONS", 2)
    assert MAX_REGIONS > 2
    for name in "ab":
        regions.register(name, "data", 0, 1)
    with pytest.raises(RequestInvalid, match="more than 2 shared memory regions"):
        regions.register("c", "data", 0, 1)


def test_memory_that_was_made_shorter_is_an_error(
    regions: SharedMemoryRegions, folder: Path
) -> None:
    regions.register("r", "data", 0, 64)
    os.truncate(folder / "data", 8)
    with pytest.raises(RequestInvalid, match="was made shorter"):
        regions.read("r", 0, 64)


def test_unregistering_closes_the_file(regions: SharedMemoryRegions) -> None:
    regions.register("r", "data", 0, 64)
    file = regions._regions["r"].file
    assert stat.S_ISREG(os.fstat(file).st_mode)
    regions.unregister("r")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_system_without_shared_memory_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="no shared memory in"):
        SharedMemoryRegions(tmp_path / "missing").register("r", "k", 0, 1)
