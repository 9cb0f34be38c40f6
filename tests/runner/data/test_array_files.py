"""Arrays in .npz and .npy files, mapped in place or loaded."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.array_files import open_npy, open_npz

X, Y = np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(6)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_columns(tmp_path: Path, save: object) -> None:
    save(tmp_path / "data.npz", x=X, y=Y, f=np.asfortranarray(X), t=np.array(["a", "bc"] * 3))
    data = open_npz(tmp_path / "data.npz")
    batch = data.read([5, 0])
    np.testing.assert_array_equal(batch["x"], X[[5, 0]])
    np.testing.assert_array_equal(batch["f"], X[[5, 0]])
    assert batch["y"].tolist() == [5, 0] and batch["t"].tolist() == ["bc", "a"]
    assert not isinstance(batch["x"], np.memmap)


def test_what_is_not_compressed_is_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((1000, 1000)))  # 8 MB
    np.save(tmp_path / "x.npy", np.zeros((1000, 1000)))
    tracemalloc.start()
    try:
        for data in (open_npz(tmp_path / "data.npz"), open_npy([tmp_path / "x.npy"])):
            assert sum(data.read([row])["x"].sum() for row in range(0, 1000, 100)) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_npy_files_are_named_after_their_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    data = open_npy([tmp_path / "x.npy", tmp_path / "y.npy"])
    assert str(data.columns["x"]) == "float32[4]" and data.read([3])["y"].tolist() == [3]


def test_types_of_ml_dtypes_are_read_from_memory_only() -> None:
    from onward.runner.data.in_memory import ArrayDataset

    assert str(ArrayDataset({"x": X.astype(ml_dtypes.bfloat16)}).columns["x"]) == "bfloat16[4]"


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y[:4])
    with pytest.raises(DataError, match=r"data.npz: 'y' has 4 rows, but 'x' has 6"):
        open_npz(tmp_path / "data.npz")


def test_empty_and_single_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", x=X[:0])
    with pytest.raises(DataError, match=r"empty.npz is empty"):
        open_npz(tmp_path / "empty.npz")
    np.savez(tmp_path / "one.npz", x=np.float32(1))
    with pytest.raises(DataError, match="'x' is a single value"):
        open_npz(tmp_path / "one.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kept", [0, 10, 200, 0.5])
def test_a_truncated_npz_file_is_refused(tmp_path: Path, save: object, kept: float) -> None:
    path = tmp_path / "data.npz"
    save(path, x=X)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(DataError, match=r"data.npz is truncated, or not a numpy file"):
        open_npz(path)


def test_truncated_and_pickled_npy_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, X)
    for kept in (0, 20, 150):
        path.write_bytes(path.read_bytes()[:kept] if kept else b"")
        with pytest.raises(DataError, match=r"x.npy is truncated, or not a numpy file"):
            open_npy([path])
        np.save(path, X)
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="not a numpy file of plain arrays"):
        open_npy([path])
