"""Descriptions and files of outputs: statistics, NaN and infinities, types that numpy lacks."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onward.cli.output_files import (
    check_target,
    count_non_finite,
    describe,
    top_classes,
    write_outputs,
)
from onward.errors import OptionError, WriteFailed


def test_tensor_is_described() -> None:
    facts = describe(np.array([[1.0, 2.0, 6.0]], np.float32))
    assert facts["dtype"] == "float32" and facts["shape"] == [1, 3]
    assert (facts["min"], facts["mean"], facts["max"]) == (1, 3, 6)
    assert facts["first"] == "1, 2, 6" and facts["data"] == [[1, 2, 6]]


def test_large_tensor_is_described_without_its_data() -> None:
    facts = describe(np.zeros(1001))
    assert "data" not in facts and facts["first"].endswith(", ...")


def test_strings_sequences_and_none_are_described() -> None:
    assert describe(np.array(["a"], object))["first"] == "'a'"
    assert describe([np.zeros(2), np.zeros(3)])["shape"] == [2]
    assert describe(None)["dtype"] == "NoneType"
    assert "min" not in describe(np.array([], np.float32))
    assert "min" not in describe(np.array([1 + 1j]))


def test_nan_and_infinities_are_counted_and_not_in_the_range() -> None:
    tensor = np.array([np.nan, np.inf, 2.0])
    assert count_non_finite(tensor) == "1 NaN and 1 infinite of 3 values"
    assert describe(tensor)["max"] == 2
    assert count_non_finite(np.array([np.nan])) and "max" not in describe(np.array([np.nan]))


def test_largest_values_are_found_row_by_row() -> None:
    rows = top_classes(np.array([[1, 3, 2], [9, 7, 8]]), 2)
    assert rows == [[(1, 3.0), (2, 2.0)], [(0, 9.0), (2, 8.0)]]
    assert top_classes(np.array(3.0), 2) == [] == top_classes(np.array(["a", "b"]), 2)


def test_types_that_numpy_lacks_become_float32(tmp_path: Path) -> None:
    halves = np.array([1.5, 2.5], ml_dtypes.bfloat16)
    write_outputs(tmp_path / "o.npz", {"y": halves}, one=False)
    write_outputs(tmp_path / "o.npy", {"y": halves}, one=True)
    assert np.load(tmp_path / "o.npz")["y"].dtype == np.float32
    assert np.load(tmp_path / "o.npy").tolist() == [1.5, 2.5]


def test_strings_complex_numbers_and_sequences_are_written(tmp_path: Path) -> None:
    write_outputs(tmp_path / "o.npz", {"t": np.array(["a"], object)}, one=False)
    assert np.load(tmp_path / "o.npz")["t"].tolist() == ["a"]
    sequence = [np.array([1 + 2j]), np.array([3])]
    write_outputs(tmp_path / "o.json", {"s": sequence}, one=True)
    assert json.loads((tmp_path / "o.json").read_text()) == [[[1, 2]], [3]]
    with pytest.raises(OptionError, match=r"'s' is not a tensor\nsave it as .json"):
        write_outputs(tmp_path / "s.npz", {"s": sequence}, one=False)


def test_output_path_is_checked_before_the_run(tmp_path: Path) -> None:
    assert check_target(tmp_path / "o.npy", (".npy",)) == tmp_path / "o.npy"
    (tmp_path / "d.npy").mkdir()
    for path, message in (
        (tmp_path / "o.txt", "saved as .npy or .json"),
        (tmp_path / "d.npy", "it is a folder"),
        (tmp_path / "no/o.npy", "there is no folder"),
    ):
        with pytest.raises((OptionError, WriteFailed), match=message):
            check_target(path, (".npy", ".json"))
