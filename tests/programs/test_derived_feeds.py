"""The rows that a batch keeps: indices, buckets, and batches that keep all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onward.programs.derived_feeds import (
    CountedLabels,
    DerivedFeeds,
    PackedRows,
    bucket_size,
    pack_indices,
)
from onward.providers.torch.derived_feeds import compute_on_device

FLAGS = hnp.arrays(bool, st.integers(1, 60))
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9))


@given(kept=FLAGS, bucket=st.integers(1, 64), repeats=st.booleans())
def test_indices_are_inverse_to_each_other(kept: Any, bucket: int, repeats: bool) -> None:
    gather, restore = pack_indices(kept, bucket, repeats=repeats)
    count = int(kept.sum())
    assert gather[:count].tolist() == np.flatnonzero(kept).tolist()
    assert (restore[kept] == np.arange(count)).all()
    assert (restore[~kept] == len(gather)).all()
    filled = gather[count:]
    assert (kept[filled] == (repeats and count > 0)).all()
    own = restore[gather] == np.arange(len(gather))
    assert own.sum() == count


@given(count=st.integers(0, 100_000), bucket=st.sampled_from([1, 64, 512]))
def test_a_bucket_adds_at_most_one_part_in_eight(count: int, bucket: int) -> None:
    size = bucket_size(count, 1 << 20, bucket)
    assert max(count, 1) <= size <= max(count * 1.125, count + 1, 1)


def test_few_sizes_of_buckets_are_used() -> None:
    assert len({bucket_size(n, 16384) for n in range(16384)}) < 128


MASK = np.array([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("mask", "labels", "why"),
    [
        (MASK * 2, -np.ones_like(MASK), "other numbers"),
        (MASK[:, ::-1], -np.ones_like(MASK), "no token at position 0"),
        (MASK * 0, -np.ones_like(MASK), "no token at all"),
        (np.array([[1, 1, 0], [0, 0, 0]]), -np.ones_like(MASK), "a sample without tokens"),
        (MASK, np.zeros_like(MASK), "labels of padding"),
        (MASK, -np.ones((1, 3), np.int64), "labels of another shape"),
    ],
)
def test_batches_that_keep_all_rows(mask: Any, labels: Any, why: str) -> None:
    counted = CountedLabels(feed="labels", ignored=-1)
    rows = PackedRows(gather="g", restore="r", mask="m", labels=(counted,), positions=(0,))
    feeds = {"m": mask, "labels": labels}
    assert rows.kept_rows(feeds) is None, why
    assert rows.compute(feeds)["g"].tolist() == list(range(6))
    assert rows.share(feeds) == 0


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_shifted_labels_keep_the_rows_that_predict_them(shift: int) -> None:
    labels = np.array([[-1, 5, -1, 7]])
    counted = CountedLabels(feed="labels", ignored=-1, shift=shift)
    assert (
        np.flatnonzero(counted.rows(labels)).tolist()
        == {
            0: [1, 3],
            1: [0, 2],
            -1: [2],
        }[shift]
    )


@given(
    mask=hnp.arrays(
        np.int64, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.integers(0, 1)
    ),
    positions=st.sampled_from([(), (0,), (-1,)]),
    shift=st.sampled_from([0, 1, -1]),
)
def test_torch_computes_the_same(mask: Any, positions: Any, shift: int) -> None:
    labels = np.where(mask == 1, 3, -1)
    labels[:, ::2] = -1
    counted = CountedLabels(feed="labels", ignored=-1, shift=shift)
    for given_mask in ("m", None):
        rows = PackedRows(
            gather="g",
            restore="r",
            mask=given_mask,
            labels=(counted,),
            positions=positions,
            bucket=4,
        )
        feeds = {"m": mask, "labels": labels}
        expected = rows.compute(feeds)
        tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
        found = compute_on_device(rows, tensors, torch.device("cpu"))
        assert {n: torch.as_tensor(x).tolist() for n, x in found.items()} == {
            n: x.tolist() for n, x in expected.items()
        }


def test_only_the_inputs_of_a_graph_are_computed() -> None:
    rows = PackedRows(gather="g", restore="r", mask="m")
    assert DerivedFeeds([rows], ["x", "r"]).compute({"m": MASK}).keys() == {"r"}
    assert not DerivedFeeds([rows], ["x"]).rows
