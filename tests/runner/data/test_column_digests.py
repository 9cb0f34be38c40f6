"""Digests of columns: what counts as a change, and how much of large data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.runner.data.column_digests import digest_columns
from onward.runner.data.image_folder import ImageFolder
from onward.runner.data.in_memory import ArrayDataset

Array = np.ndarray[Any, Any]
Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")


def digest(values: Any) -> str:
    return digest_columns(ArrayDataset({"x": values}), ["x"])["x"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2, 3], [1, 3, 2]),
        (["ab", "c"], ["a", "bc"]),
        ([1.0, np.nan], [np.nan, 1.0]),
        ([2**60, 1], [2**60 + 1, 1]),
        (np.eye(3), np.ones((3, 3))),
    ],
)
def test_other_values_have_other_digests(a: Any, b: Any) -> None:
    assert digest(a) != digest(b) and digest(a) == digest(a)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f4", "f8", bool])
def test_types_of_numbers_do_not_count(dtype: Any) -> None:
    assert digest(np.array([0, 1, 0]).astype(dtype)) == digest([0, 1, 0])


class CountedRows(ArrayDataset):
    """Counts the rows that are read."""

    count = 0

    def read(self, positions: Array, columns: Any = None) -> dict[str, Array]:
        self.count += len(positions)
        return super().read(positions, columns)


def test_large_data_is_read_at_some_places() -> None:
    values = np.arange(1_000_000)
    data = CountedRows({"x": values})
    before = digest_columns(data, ["x"])
    assert data.count < 25_000
    assert digest_columns(CountedRows({"x": values[::-1].copy()}), ["x"]) != before
    assert digest(np.r_[values[:-1], 0]) != before["x"]  # the last row is one of them


def test_columns_that_change_when_they_are_read_have_no_digest() -> None:
    class Augmented(ArrayDataset):
        random = np.random.default_rng(0)

        def read(self, positions: Array, columns: Any = None) -> dict[str, Array]:
            found = super().read(positions, columns)
            noise = self.random.normal(size=len(positions))
            return {name: each + noise * (name == "x") for name, each in found.items()}

    data = Augmented({"x": np.ones(9), "y": np.arange(9)})
    assert list(digest_columns(data, ["x", "y"])) == ["y"]


def test_a_wide_table_has_one_digest() -> None:
    table = {f"c{number}": np.arange(3) for number in range(100)}
    found = digest_columns(ArrayDataset(table), list(table))
    assert list(found) == ["c0 to c99"]
    table["c50"] = np.zeros(3)
    assert digest_columns(ArrayDataset(table), list(table)) != found


def test_an_image_that_is_not_read_counts_by_the_size_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(200):
        Image.new("L", (4, 4), number).save(tmp_path / "a" / f"{number:03d}.png")
    before = digest_columns(ImageFolder(tmp_path, channels=1), ["image"])
    assert digest_columns(ImageFolder(tmp_path, channels=1), ["image"]) == before
    Image.new("RGB", (80, 40), (1, 2, 3)).save(tmp_path / "a" / "006.png")
    assert digest_columns(ImageFolder(tmp_path, channels=1), ["image"]) != before
