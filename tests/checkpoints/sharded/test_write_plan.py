"""The plan of writes: every element once, by a rank that holds it, evenly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.checkpoints.sharded.pieces import Piece
from onward.checkpoints.sharded.write_plan import (
    HeldTensor,
    held_by,
    pieces_to_write,
    plan_writes,
)
from onward.checkpoints.tensor_files import TensorMetadata
from onward.errors import CheckpointError


def held(*spans: tuple[int, int], shape: tuple[int, ...] = (100,), dtype: str = "float32") -> Any:
    return {"w": HeldTensor(TensorMetadata(dtype, shape), spans)}


def test_a_shard_is_written_by_the_rank_that_holds_it() -> None:
    assert plan_writes([held((0, 60)), held((60, 100))]) == [{"w": [(0, 60)]}, {"w": [(60, 100)]}]


def test_large_replicated_tensors_are_shared_evenly() -> None:
    size = 1 << 20
    plan = plan_writes([held((0, size), shape=(size,))] * 4)
    assert [each["w"] for each in plan] == [
        [(rank * size // 4, (rank + 1) * size // 4)] for rank in range(4)
    ]


def test_small_replicated_tensors_are_spread_over_the_ranks() -> None:
    spec = TensorMetadata("float32", (50,))
    tensors = {f"t{n}": HeldTensor(spec, ((0, 50),)) for n in range(8)}
    assert [len(each) for each in plan_writes([tensors] * 4)] == [2, 2, 2, 2]


def test_equal_shards_of_hybrid_sharding_are_written_once() -> None:
    size = 1 << 18
    low, high = held((0, size // 2), shape=(size,)), held((size // 2, size), shape=(size,))
    plan = plan_writes([low, high, low, high])
    assert sorted(span for each in plan for spans in each.values() for span in spans) == [
        (n * size // 4, (n + 1) * size // 4) for n in range(4)
    ]


def test_an_element_on_no_rank_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"elements \[40, 60\) of tensor 'w' \[100\] are on"):
        plan_writes([held((0, 40)), held((60, 100))])
    with pytest.raises(CheckpointError, match=r"float64\[100\] on rank 1, and float32\[100\]"):
        plan_writes([held((0, 100)), held((0, 100), dtype="float64")])


@st.composite
def layouts(draw: Any) -> list[dict[str, list[tuple[int, int]]]]:
    """Ranges of tensors that some ranks hold, which cover all of them, often more than once."""
    ranks = draw(st.integers(1, 4))
    held: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(ranks)]
    for name, size in (("a", 7), ("b", 40), ("c", 0)):
        cuts = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=4))})
        for span in zip(cuts, cuts[1:] or cuts):
            for rank in draw(st.sets(st.integers(0, ranks - 1), min_size=1)):
                held[rank].setdefault(name, []).append(span)
    return held


@settings(max_examples=100)
@given(layouts(), st.integers(1, 64))
def test_every_element_is_written_once_by_a_holder(layout: Any, smallest: int) -> None:
    sizes = {"a": (7,), "b": (5, 8), "c": (0, 3)}
    values = {name: np.arange(math.prod(shape), dtype=np.int16) for name, shape in sizes.items()}
    pieces = [
        {
            name: [Piece(array=values[name][a:b], start=a, shape=sizes[name]) for a, b in spans]
            for name, spans in tensors.items()
        }
        for tensors in layout
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onward.checkpoints.sharded.write_plan.SMALLEST_SHARE", smallest)
        plan = plan_writes([held_by(each) for each in pieces])
    written: dict[str, list[Piece]] = {name: [] for name in sizes}
    for own, planned in zip(pieces, plan):
        for name, cuts in pieces_to_write(own, planned).items():
            written[name] += cuts
    for name, cuts in written.items():
        cuts.sort(key=lambda piece: piece.span)
        assert np.array_equal(np.concatenate([cut.array for cut in cuts]), values[name])
        assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
