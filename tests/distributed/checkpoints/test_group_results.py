"""Results of a group: all ranks have them, or all raise one error."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.distributed.checkpoints.group_results import OneProcess, from_rank_0, gather_results
from onward.errors import CheckpointCorrupt, CheckpointError, RunFenced


def test_results_come_by_rank() -> None:
    assert (
        run_ranks(3, lambda group: gather_results(group, lambda: group.rank * 2)) == [[0, 2, 4]] * 3
    )
    assert run_ranks(3, lambda group: from_rank_0(group, lambda: group.rank + 5)) == [5] * 3
    assert gather_results(OneProcess(), lambda: 1) == [1]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (CheckpointCorrupt("a is damaged\nb"), CheckpointCorrupt, "rank 1: a is damaged\nb"),
        (RunFenced("x owns it"), RunFenced, "^x owns it"),
        (ZeroDivisionError("by 0"), CheckpointError, "rank 1: ZeroDivisionError: by 0"),
    ],
)
def test_an_error_of_one_rank_is_raised_by_all(error: Any, kind: Any, text: str) -> None:
    def compute(group: ThreadRank) -> None:
        def fail() -> None:
            if group.rank == 1:
                raise error

        with pytest.raises(kind, match=text):
            gather_results(group, fail)

    run_ranks(2, compute)


def test_other_ranks_do_not_compute_what_is_rank_0s() -> None:
    computed = []
    run_ranks(3, lambda group: from_rank_0(group, lambda: computed.append(group.rank)))
    assert computed == [0]
