"""The choice of the largest elements."""

from __future__ import annotations

import pytest
import torch

from onward.distributed.compression.top_k import find_largest


@pytest.mark.parametrize("elements", [1, 5, 2_000, 50_000])
@pytest.mark.parametrize("share", [1e-9, 0.01, 0.3, 1.0])
def test_the_largest_are_found(elements: int, share: float) -> None:
    count = max(1, round(share * elements))
    generator = torch.Generator().manual_seed(elements)
    for values in (
        torch.rand(elements, generator=generator),
        torch.randint(0, 3, (elements,), generator=generator).float(),  # many are equal
        torch.zeros(elements),
        torch.arange(elements) % 61 == 0,  # the sample has large values only
        torch.arange(elements) % 61 != 0,  # the sample has small values only
    ):
        found = find_largest(values.float(), count)
        expected = torch.topk(values.float(), count).values
        assert found.numel() == found.unique().numel() == count
        assert torch.equal(values.float()[found].sort(descending=True).values, expected)


@pytest.mark.parametrize("index", [0, 7, 61, 19_999])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_counts_as_largest(index: int, bad: float) -> None:
    values = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    values[index] = bad
    assert index in find_largest(values, 100)
