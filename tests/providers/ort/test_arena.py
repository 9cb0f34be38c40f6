"""The imitated arena: it grows, splits, joins and touches as onnxruntime's does."""

from __future__ import annotations

import mmap

from onward.providers.ort.arena import FIRST_REGION, Arena, Pattern

TABLE = 8 * FIRST_REGION // 256  # what onnxruntime keeps for a region's chunks


def test_only_what_is_touched_counts() -> None:
    arena = Arena()
    arena.alloc(10)
    assert arena.reserved == FIRST_REGION
    assert arena.resident == mmap.PAGESIZE + TABLE


def test_what_is_freed_is_joined_and_given_out_again() -> None:
    arena = Arena()
    chunks = [arena.alloc(1000) for _ in range(3)]
    for chunk in (chunks[0], chunks[2], chunks[1]):
        arena.free(chunk)
    (region,) = arena.regions
    assert len(region.chunks) == 1 and region.chunks[0].size == FIRST_REGION
    again = arena.alloc(3000)
    assert again is not None and again.offset == 0


def test_the_smallest_chunk_that_fits_is_taken() -> None:
    arena = Arena()
    kept = [arena.alloc(size) for size in (4096, 256, 1024, 256)]
    arena.free(kept[0])
    arena.free(kept[2])
    found = arena.alloc(900)
    assert found is not None and found.offset == 4096 + 256


def test_regions_double_and_grow_to_what_is_asked() -> None:
    arena = Arena()
    for size in (51_380_224, 65_536, 77_070_336):  # as onnxruntime logs it
        chunk = arena.alloc(size)
        assert chunk is not None
        if size == 51_380_224:
            kept = chunk
    assert kept.size == 67_108_864  # less than twice what was asked: not split
    assert [region.size for region in arena.regions] == [67_108_864, 67_108_864, 134_217_728]


def test_a_pattern_places_tensors_in_gaps() -> None:
    pattern = Pattern()
    for number, size in enumerate((1000, 500, 256)):
        pattern.alloc(number, size)
    pattern.free(0)
    pattern.alloc(3, 700)
    pattern.alloc(4, 256)
    assert pattern.blocks[3] == (0, 768) and pattern.blocks[4] == (768, 256)
    assert pattern.size == 1024 + 512 + 256
