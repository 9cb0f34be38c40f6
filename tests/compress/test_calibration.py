"""Calibration: batches from every kind of data, and one clear line for what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.compress.calibration import Calibration
from onward.errors import DataError, FeedError, FileMissing, OptionError
from onward.graph.signature import NodeArg
from onward.sessions.inference import InferenceSession
from tests.models import mlp

INPUTS = InferenceSession(mlp()).get_inputs()  # x (batch, 4)
ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def shapes(calibration: Calibration) -> list[tuple[int, ...]]:
    return [feeds["x"].shape for feeds in calibration.batches()]


def test_without_data_feeds_are_random_and_the_same_each_time() -> None:
    data = Calibration(None, INPUTS, sizes={"batch": 3})
    assert data.is_random and set(shapes(data)) == {(3, 4)}
    first, second = (np.concatenate([f["x"] for f in data.batches()]) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("suffix", ["npz", "dict", "array"])
def test_rows_are_divided_into_batches(suffix: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=ROWS)
    source = {"npz": tmp_path / "rows.npz", "dict": {"x": ROWS}, "array": {"any": ROWS}}[suffix]
    data = Calibration(source, INPUTS, batch=4)
    assert shapes(data) == [(4, 4), (4, 4), (2, 4)]
    assert np.array_equal(np.concatenate([f["x"] for f in data.batches()]), ROWS)


def test_targets_come_with_their_rows() -> None:
    data = Calibration({"x": ROWS, "label": np.arange(10)}, INPUTS, target="label", batch=4)
    assert [t.tolist() for _, t in data.labelled_batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_generator_is_read_once_and_used_often() -> None:
    def generate() -> Iterator[Any]:
        yield {"x": ROWS[:3]}, np.zeros(3)
        yield {"x": ROWS[3:]}, np.ones(7)

    data = Calibration(generate(), INPUTS)
    assert shapes(data) == shapes(data) == [(3, 4), (7, 4)]
    assert [float(t[0]) for _, t in data.labelled_batches()] == [0.0, 1.0]


def test_limit_ends_the_data() -> None:
    assert len(shapes(Calibration({"x": ROWS}, INPUTS, batch=1, limit=3))) == 3


def test_one_sample_is_one_batch() -> None:
    assert shapes(Calibration({"x": ROWS[:1]}, INPUTS)) == [(1, 4)]


def test_numbers_of_another_precision_are_cast() -> None:
    data = Calibration({"x": ROWS.astype(np.float64)}, INPUTS)
    assert data.first()["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([], DataError, "no batches"),
        ([3], DataError, "a batch must be a dict of arrays by input"),
        (3, DataError, "data must be a file, a table, arrays or feeds"),
        ([{"y": ROWS}], FeedError, "'y'"),
        ([{"x": ROWS[:, :3]}], FeedError, "x"),
        ([{"x": ROWS.astype(str)}], FeedError, "x"),
        ({"x": ROWS.reshape(2, 5, 2, 2)}, FeedError, "4 dimensions in the data"),
        ([{"x": ROWS * np.nan}], DataError, "NaN or infinite numbers in 'x'"),
        ("missing.npz", FileMissing, "no data file at"),
    ],
)
def test_wrong_data_is_one_clear_error(source: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Calibration(source, INPUTS).first()


def test_rows_of_an_input_without_a_shape_are_divided_into_batches() -> None:
    arg = NodeArg("x", "tensor(float)", [], is_ranked=False)
    rows = np.arange(48, dtype=np.float32).reshape(12, 4)
    found = [feeds["x"] for feeds in Calibration({"x": rows}, [arg], batch=8).batches()]
    assert [each.shape for each in found] == [(8, 4), (4, 4)]
    np.testing.assert_array_equal(np.concatenate(found), rows)


def test_numbers_become_bfloat16_where_a_model_takes_it() -> None:
    arg = NodeArg("x", "tensor(bfloat16)", ["batch", 4])
    [feeds] = Calibration({"x": np.ones((3, 4), np.float32)}, [arg]).batches()
    assert feeds["x"].dtype.name == "bfloat16" and feeds["x"].shape == (3, 4)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_bytes(b"PK no archive")
    with pytest.raises(DataError, match=r"rows\.npz cannot be read"):
        Calibration(tmp_path / "rows.npz", INPUTS)


def test_a_missing_target_is_named() -> None:
    with pytest.raises(DataError, match="no array 'label' for the target"):
        Calibration({"x": ROWS}, INPUTS, target="label")


def test_numbers_of_batches_must_be_positive() -> None:
    with pytest.raises(OptionError, match="batch must be at least 1"):
        Calibration(None, INPUTS, batch=0)
