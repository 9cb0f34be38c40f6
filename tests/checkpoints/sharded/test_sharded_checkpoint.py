"""Any layout loads into any other; damage is named; memory stays small."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.checkpoints import tensor_files
from onward.checkpoints.sharded.lease import take_lease
from onward.checkpoints.sharded.sharded_checkpoint import open_checkpoint
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from tests.checkpoints.sharded.sharded_folders import DISK, even_spans, save

TENSORS: dict[str, Any] = {
    "w": np.arange(40, dtype=np.float32).reshape(5, 8),
    "optimizer/exp_avg/w": np.arange(40).reshape(5, 8) / 7,
    "half": np.arange(9).astype(ml_dtypes.bfloat16),
    "flag": np.array(True),
    "empty": np.zeros((0, 3), np.int64),
}


def saved(folder: Path, ranks: int = 3) -> Path:
    lease = take_lease(folder, "a test", disk=DISK)
    return save(lease, TENSORS, 7, even_spans(TENSORS, ranks), properties={"b": 1, "a": [2, None]})


def test_whole_tensors_come_back(tmp_path: Path) -> None:
    found = open_checkpoint(saved(tmp_path)).read_all()
    assert set(found.tensors) == set(TENSORS) and found.step == 7
    assert found.properties == {"b": 1, "a": [2, None]} and list(found.properties) == ["b", "a"]
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].shape == tensor.shape
        assert np.array_equal(found.tensors[name], tensor)


@st.composite
def cuts(draw: Any, size: int) -> list[tuple[int, int]]:
    places = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=5))})
    return list(zip(places, places[1:] or places))


@st.composite
def saves(draw: Any) -> Any:
    """Random tensors, who writes which range of them, and the ranges that others ask for."""
    tensors, asked = {}, []
    layout: list[dict[str, Any]] = [{} for _ in range(draw(st.integers(1, 4)))]
    kinds = [np.float32, np.float16, np.int64, np.bool_, np.uint8, ml_dtypes.bfloat16]
    for number in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(["w", "w[0:3]", "ü/β", "optimizer/m/w"])) + str(number)
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        flat = np.random.default_rng(number).integers(0, 100, int(np.prod(shape)))
        tensors[name] = flat.astype(draw(st.sampled_from(kinds))).reshape(shape)
        for span in draw(cuts(flat.size)):
            draw(st.sampled_from(layout)).setdefault(name, []).append(span)
        asked += [(name, *span) for span in draw(cuts(flat.size))]
    return tensors, layout, draw(st.permutations(asked))


@settings(max_examples=60)
@given(saves())
def test_any_layout_loads_into_any_other(
    tmp_path_factory: pytest.TempPathFactory, given_save: Any
) -> None:
    tensors, layout, asked = given_save
    lease = take_lease(tmp_path_factory.mktemp("law"), "a test", disk=DISK)
    found = open_checkpoint(save(lease, tensors, 1, layout))
    assert {name: spec.shape for name, spec in found.tensors.items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }
    for name, start, stop in asked:
        part = found.read_range(name, start, stop)
        assert part.dtype == tensors[name].dtype
        assert part.tobytes() == tensors[name].reshape(-1)[start:stop].tobytes()
    for name, tensor in tensors.items():
        assert np.array_equal(found.read_tensor(name), tensor)


def test_a_file_of_whole_tensors_loads_into_any_layout(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    tensor_files.write(path, TENSORS, {"epoch": 3}, step=9)
    found = open_checkpoint(path)
    assert found.step == 9 and found.properties == {"epoch": 3}
    for spans in even_spans(TENSORS, 3):
        for name, [(start, stop)] in spans.items():
            wanted = TENSORS[name].reshape(-1)[start:stop]
            assert np.array_equal(found.read_range(name, start, stop), wanted)
    found.verify()


def test_a_range_is_read_into_a_buffer(tmp_path: Path) -> None:
    found, vector = open_checkpoint(saved(tmp_path)), np.zeros(50, np.float32)
    found.read_range("w", 10, 30, into=vector[5:25])
    assert vector.tolist() == [0.0] * 5 + list(range(10, 30)) + [0.0] * 25
    for wrong in (vector[:3], vector[:20].astype(np.float64), vector[::2][:20]):
        with pytest.raises(
            CheckpointError, match="20 elements of float32 of tensor 'w' do not fit"
        ):
            found.read_range("w", 10, 30, into=wrong)


def test_wrong_names_and_ranges_are_refused(tmp_path: Path) -> None:
    found = open_checkpoint(saved(tmp_path))
    with pytest.raises(CheckpointError, match=r"has no tensor 'v'\nit has w, optimizer"):
        found.read_range("v")
    with pytest.raises(CheckpointError, match=r"'w' has 40 elements, and \[3, 41\) is asked"):
        found.read_range("w", 3, 41)


def test_a_small_range_of_a_large_tensor_takes_little_memory(tmp_path: Path) -> None:
    tensors = {"w": np.arange(6_000_000, dtype=np.float32)}
    lease = take_lease(tmp_path, "a test", disk=DISK)
    path = save(lease, tensors, 1, even_spans(tensors, 2))
    del tensors
    tracemalloc.start()
    found = open_checkpoint(path)
    found.verify()
    part = found.read_range("w", 2_999_990, 3_000_010)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.tolist() == list(range(2_999_990, 3_000_010))
    assert peak < 6 << 20  # a buffer of 4 MiB, of 24 MB


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_damaged_pieces_are_named_when_they_are_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    flip(path / "part-00001.safetensors")
    found = open_checkpoint(path)
    with pytest.raises(CheckpointCorrupt, match=r"part-00001.safetensors: tensor '.*' is damaged"):
        found.read_all()
    with pytest.raises(CheckpointCorrupt, match=r"part-00001"):
        found.verify()
    found.verify(["part-00000.safetensors", "part-00002.safetensors"])
    assert found.read_range("w", 0, 13).tolist() == list(range(13))  # of the first part


def test_missing_and_exchanged_parts_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    part = path / "part-00001.safetensors"
    data = part.read_bytes()
    part.write_bytes((path / "part-00002.safetensors").read_bytes())
    with pytest.raises(
        CheckpointCorrupt, match=r"part-00001.safetensors: not damaged, but not the"
    ):
        open_checkpoint(path).verify([])
    part.unlink()
    with pytest.raises(CheckpointMissing, match=r"part-00001.safetensors: there is no such file"):
        open_checkpoint(path).verify([])
    part.write_bytes(data[:-5])
    with pytest.raises(CheckpointCorrupt, match=r"part-00001.safetensors: cut short"):
        open_checkpoint(path).read_all()


def test_a_part_that_is_cut_short_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found = open_checkpoint(path)
    found.verify()
    part = path / "part-00002.safetensors"
    part.write_bytes(part.read_bytes()[:-2])
    with pytest.raises(CheckpointCorrupt, match=r"part-00002.safetensors: cut short within tensor"):
        found.read_all()


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    flip(path / "manifest.json", 20)
    with pytest.raises(CheckpointCorrupt, match=r"manifest.json is damaged: "):
        open_checkpoint(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointMissing, match=r"manifest.json is missing: the save was not fin"):
        open_checkpoint(path)
