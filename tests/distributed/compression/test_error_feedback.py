"""What reducers keep from step to step: nothing is lost, and a skipped step leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.distributed import HalfPrecision, Int8, PowerSGD, TopK
from onward.distributed.compression.reducer_memory import redistribute
from onward.errors import CheckpointMismatch
from onward.programs.vector_offsets import Places, place
from tests.distributed.group_of_threads import run_threads

KINDS = [
    TopK(share=0.1),
    Int8(block=16),
    PowerSGD(rank=1, minimum_rate=1.0),
    PowerSGD(rank=2, factors="bfloat16"),
]
PLACES = place({"w": (12, 10), "b": (7,)}, np.dtype("float32"))


def gradients(places: Places, seed: int) -> torch.Tensor:
    vector, generator = torch.zeros(places.size), torch.Generator().manual_seed(seed)
    for each in places.slices.values():
        vector[each] = torch.randn(each.stop - each.start, generator=generator)
    return vector


def reduce_steps(communicator: Any, kind: Any, places: Places, steps: int) -> tuple[Any, Any]:
    reducer, total = kind.open(communicator, places), torch.zeros(places.size)
    for step in range(steps):
        vector = gradients(places, 100 * step + communicator.rank)
        reducer.reduce(vector).wait()
        total += vector
    return total, reducer.state()


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=15)
@given(
    size=st.integers(2, 4),
    steps=st.integers(1, 4),
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=4),
)
def test_sent_and_kept_gradients_add_up_to_all(
    kind: Any, size: int, steps: int, shapes: list[list[int]]
) -> None:
    places = place({str(i): tuple(each) for i, each in enumerate(shapes)}, np.dtype("float32"))
    found = run_threads(reduce_steps, size, kind, places, steps)
    exact = sum(gradients(places, 100 * t + r).numpy() for t in range(steps) for r in range(size))
    kept = sum(state["error"] for _, state in found)
    for total, _ in found:
        assert np.array_equal(total, found[0][0])
    rounding = 0.05 if "bfloat16" in repr(kind) else 1e-4  # of the sum of factors
    assert np.abs(found[0][0].numpy() + kept - exact).max() < rounding * (1 + np.abs(exact).max())


def reduce_around_a_bad_step(communicator: Any, kind: Any, bad: float | None, undo: bool) -> Any:
    """Two good steps; between them one where the last process has a bad number, unless None."""
    reducer, rank = kind.open(communicator, PLACES), communicator.rank
    reducer.reduce(gradients(PLACES, rank)).wait()
    spoilt = gradients(PLACES, 10 + rank)
    if bad is not None:
        if rank == communicator.size - 1:
            spoilt[PLACES.slices["w"].stop - 1] = bad
        reducer.reduce(spoilt).wait()
    if undo:
        reducer.undo()
        reducer.undo()  # once more changes nothing
    second = gradients(PLACES, 20 + rank)
    reducer.reduce(second).wait()
    return spoilt, second, reducer.state()


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [*KINDS, HalfPrecision(), PowerSGD(start_step=9)], ids=repr)
def test_nan_reaches_all_processes_and_leaves_no_trace(kind: Any, bad: float, undo: bool) -> None:
    expected = run_threads(reduce_around_a_bad_step, 3, kind, None, False)
    found = run_threads(reduce_around_a_bad_step, 3, kind, bad, undo)
    for (_, second, state), (spoilt, other, other_state) in zip(expected, found):
        assert not torch.isfinite(spoilt).all()
        assert torch.equal(spoilt.isfinite(), found[0][0].isfinite())
        assert not spoilt[PLACES.slices["w"].stop : PLACES.slices["b"].start].any()  # a gap
        assert torch.equal(second, other)
        assert_same_state(state, other_state)


def reduce_with_a_skipped_step(communicator: Any, kind: Any, skip: bool) -> Any:
    """A step that is finite here, but whose update another bucket made the session skip."""
    reducer, rank = kind.open(communicator, PLACES), communicator.rank
    reducer.reduce(gradients(PLACES, rank)).wait()
    if skip:
        reducer.reduce(gradients(PLACES, 10 + rank)).wait()
        reducer.undo()
    vector = gradients(PLACES, 20 + rank)
    reducer.reduce(vector).wait()
    return vector, reducer.state()


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_skipped_update_is_undone(kind: Any) -> None:
    expected = run_threads(reduce_with_a_skipped_step, 2, kind, False)
    found = run_threads(reduce_with_a_skipped_step, 2, kind, True)
    for (vector, state), (other, other_state) in zip(expected, found):
        assert torch.equal(vector, other)
        assert_same_state(state, other_state)


def reduce_and_restore(communicator: Any, kind: Any, restore: bool) -> Any:
    reducer, rank = kind.open(communicator, PLACES), communicator.rank
    for step in range(2):
        reducer.reduce(gradients(PLACES, 10 * step + rank)).wait()
    if restore:
        state = reducer.state()
        reducer.reduce(gradients(PLACES, 7)).wait()  # must not change what was saved
        reducer = kind.open(communicator, PLACES)
        reducer.restore(state)
    vectors = [gradients(PLACES, 30 + rank), gradients(PLACES, 40 + rank)]
    for vector in vectors:
        reducer.reduce(vector).wait()
    return torch.cat(vectors)


@pytest.mark.parametrize(
    "kind", [*KINDS, PowerSGD(start_step=3), PowerSGD(warm_start=False)], ids=repr
)
def test_a_restored_reducer_continues_bit_for_bit(kind: Any) -> None:
    expected = run_threads(reduce_and_restore, 2, kind, False)
    for one, other in zip(expected, run_threads(reduce_and_restore, 2, kind, True)):
        assert torch.equal(one, other)


def reduce_at_two_scales(communicator: Any, kind: Any, second: float) -> torch.Tensor:
    reducer, rank = kind.open(communicator, PLACES), communicator.rank
    reducer.reduce(gradients(PLACES, rank)).wait()
    vector = gradients(PLACES, 10 + rank) * second
    reducer.reduce(vector, second).wait()
    return vector / second


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_error_follows_the_loss_scale(kind: Any) -> None:
    [one, _] = run_threads(reduce_at_two_scales, 2, kind, 1.0)
    [other, _] = run_threads(reduce_at_two_scales, 2, kind, 1024.0)
    assert torch.equal(one, other)  # a power of two changes no digit


def reduce_in_float64(communicator: Any, kind: Any) -> torch.Tensor:
    reducer = kind.open(communicator, PLACES)
    for step in range(3):
        vector = gradients(PLACES, 10 * step + communicator.rank).double() / 3
        reducer.reduce(vector).wait()
    return vector


@pytest.mark.parametrize("kind", [*KINDS, HalfPrecision()], ids=repr)
def test_float64_gradients_stay_float64(kind: Any) -> None:
    one, two = run_threads(reduce_in_float64, 2, kind)
    assert one.dtype == torch.float64 and torch.equal(one, two)


def test_zero_gradients_do_not_end_a_warm_start() -> None:
    """A Q of zeros has no columns to multiply with; the next estimate must not be zero."""

    def run(communicator: Any) -> torch.Tensor:
        reducer = PowerSGD(rank=2).open(communicator, PLACES)
        reducer.reduce(torch.zeros(PLACES.size)).wait()
        vector = gradients(PLACES, 1)
        reducer.reduce(vector).wait()
        return vector[PLACES.slices["w"]]

    assert run_threads(run, 2)[0].norm() > 0.1


def test_large_gradients_do_not_grow_in_a_warm_start() -> None:
    """A Q that is not made orthonormal is as large as the gradients, and P their square."""

    def run(communicator: Any) -> bool:
        reducer, finite = PowerSGD(rank=2, factors="float16").open(communicator, PLACES), True
        for step in range(3):
            vector = 300 * gradients(PLACES, step)
            reducer.reduce(vector).wait()
            finite = finite and bool(vector.isfinite().all())
        return finite

    assert run_threads(run, 2) == [True, True]


def test_errors_are_divided_among_another_number_of_processes() -> None:
    found = run_threads(reduce_steps, 4, Int8(block=16), PLACES, 2)
    states = [state for _, state in found]
    three = redistribute(states, 3)
    total = sum(state["error"] for state in states)
    assert np.allclose(sum(state["error"] for state in three), total, atol=1e-6)
    assert all(int(state["step"]) == 2 for state in three)
    assert redistribute([{}, {}], 3) == [{}, {}, {}]  # what HalfPrecision keeps


def test_a_state_of_another_bucket_is_refused() -> None:
    def run(communicator: Any) -> None:
        reducer = TopK().open(communicator, PLACES)
        with pytest.raises(CheckpointMismatch, match="has 3 elements, this run needs 144"):
            reducer.restore({"error": np.zeros(3, np.float32)})
        reducer.restore({})

    run_threads(run, 2)


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name
        assert np.isfinite(array).all()
