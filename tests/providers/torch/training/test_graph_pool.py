"""A pool of recorded CUDA graphs holds little more than what they need at once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from onward.providers.torch.training.graph_pool import GraphPool, best_reserve  # noqa: E402

MB = 1 << 20


def test_the_reserve_that_holds_the_least_is_taken() -> None:
    holds = {90: 130, 100: 125, 102: 104, 104: 104, 106: 106, 108: 108}
    tried = []

    def try_reserve(size: int) -> int:
        tried.append(size)
        return holds[size]

    assert best_reserve(100, 120, try_reserve) == 102
    assert tried == [90, 100, 102]  # more than 104 bytes cannot hold less


def test_no_reserve_is_taken_where_none_holds_less() -> None:
    assert best_reserve(100, 103, lambda size: max(size, 103)) == 0


@pytest.mark.gpu
def test_a_graph_holds_little_more_than_it_needs() -> None:
    total = torch.zeros(1, device="cuda")

    def call() -> torch.Tensor:
        """60 MB twice, then 100 MB that fit into neither: 120 MB at once."""
        pieces = [torch.full((60 * MB,), k, dtype=torch.uint8, device="cuda") for k in (1, 2)]
        total.add_(pieces[0].max() + pieces[1].max())
        del pieces
        return torch.full((100 * MB,), 3, dtype=torch.uint8, device="cuda").max() + total

    call()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, result = GraphPool(torch.device("cuda")).record(call)
    assert torch.cuda.memory_reserved() - before < 140 * MB  # 220 MB piece by piece
    graph.replay()
    graph.replay()
    assert (float(total), float(result)) == (9.0, 12.0)
