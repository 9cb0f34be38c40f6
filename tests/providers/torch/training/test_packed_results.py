"""Results that are copied together, and flags that are read together."""

from __future__ import annotations

import pytest
import torch

from onward.providers.torch.training.packed_results import BufferedTensor, PackedResults
from onward.providers.torch.training.pending_flags import PendingFlags
from onward.providers.torch.training.results import TorchResults

DTYPES = (
    torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.float64,
)  # fmt: skip


def test_copies_have_types_shapes_and_values_of_the_results() -> None:
    small = [torch.arange(size).to(dtype) for dtype in DTYPES for size in (1, 3)]
    shaped = [torch.tensor(2.5), torch.arange(6).reshape(2, 3), torch.arange(6.0).reshape(2, 3).T]
    large, empty = torch.arange(100.0), torch.empty(0, 3)
    given = (small, shaped, large, (empty, None, 7))
    copied = PackedResults(given).copy()
    for one, other in zip([*small, *shaped, large, empty], flat(copied)):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one, other)
    assert copied[3][1:] == (None, 7)


def flat(results: object) -> list[torch.Tensor]:
    if isinstance(results, (list, tuple)):
        return [x for each in results for x in flat(each)]
    return [results] if isinstance(results, torch.Tensor) else []


def test_copies_do_not_change_with_later_ones() -> None:
    loss, flag = torch.tensor(1.0), torch.tensor(True)
    packed = PackedResults((loss, flag))
    first = packed.copy()
    assert packed._buffer is not None
    packed._buffer.zero_()  # what a replay overwrites
    assert float(first[0]) == 1.0 and bool(first[1])
    assert float(packed.copy()[0]) == 0.0


def test_small_results_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    clone = torch.Tensor.clone
    packed = PackedResults((torch.tensor(1.0), torch.tensor(True), torch.arange(3)))
    monkeypatch.setattr(torch.Tensor, "clone", lambda x: copies.append(x) or clone(x))
    packed.copy()
    assert len(copies) == 1


def test_flags_that_wait_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    flags, values = PendingFlags(), [True, False, True]
    added = [flags.add(torch.tensor(value)) for value in values]
    reads = []
    read = flags.read
    monkeypatch.setattr(flags, "read", lambda: reads.append(1) or read())
    assert [bool(flag) for flag in reversed(added)] == values[::-1]
    assert len(reads) == 1
    assert bool(flags.add(torch.tensor(True))) and len(reads) == 2


def test_small_results_may_stay_packed_until_they_are_read() -> None:
    loss, flag, large = torch.tensor(0.5), torch.tensor(True), torch.arange(100.0)
    packed = PackedResults(((loss, large), flag)).copy_packed()
    assert isinstance(packed[0][0], BufferedTensor) and isinstance(packed[1], BufferedTensor)
    assert torch.equal(packed[0][0].tensor(), loss) and torch.equal(packed[0][1], large)
    results = TorchResults({"loss": packed[0][0]}, as_numpy=False)
    assert torch.equal(results["loss"], loss) and results["loss"] is results["loss"]
    assert TorchResults({"loss": packed[0][0]}, as_numpy=True)["loss"] == 0.5


@pytest.mark.parametrize("places", ["one", "several", "mixed"])
def test_packed_flags_are_read_together(places: str) -> None:
    values = [True, False, True]
    flags, added = PendingFlags(), []
    for number, value in enumerate(values):
        beside = [torch.zeros(number if places == "several" else 0, dtype=torch.int64)]
        _, tensor = PackedResults(([torch.tensor(1.0), *beside], torch.tensor(value))).copy_packed()
        added.append(flags.add(tensor.tensor() if places == "mixed" and number else tensor))
    assert [bool(flag) for flag in added] == values
