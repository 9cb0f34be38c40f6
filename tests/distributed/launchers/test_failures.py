"""Which process failed first, and how that is told."""

from __future__ import annotations

import pytest

from onward.distributed.launchers.failures import Failure, root_cause

LOST = ("RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:4",)
OURS = ("error: another process of this run is gone or did not answer: x",)


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ([Failure(0, 2, 1), Failure(1, 2, 2)], 0),
        ([Failure(0, 2, -15), Failure(1, 2, 2)], 1),  # the agent stopped process 0
        ([Failure(0, 2, 130), Failure(1, 2, 2)], 1),  # so it saved
        ([Failure(0, 2, 1), Failure(1, 2, 1, ("ValueError: no",))], 1),  # the reason is known
        ([Failure(0, 2, 1), Failure(1, 2, 1, LOST)], 0),
        ([Failure(0, 3, 2, OURS), Failure(1, 3, 1, LOST), Failure(2, 3, -9)], 2),
        ([Failure(1, 3, -15), Failure(2, 3, -15)], 1),
    ],
)
def test_the_root_cause_is_chosen(failures: list[Failure], rank: int) -> None:
    assert root_cause(failures).rank == rank == root_cause(failures[::-1]).rank


@pytest.mark.parametrize(
    ("failure", "text", "status"),
    [
        (Failure(1, 4, 3), "process 1 of 4 ended with exit code 3", 3),
        (Failure(1, 4, 3, ("a", "Bad: b", " ")), "process 1 of 4 ended with exit code 3: Bad: b",
         3),
        (Failure(0, 2, -11), "process 0 of 2 was ended by SIGSEGV", 139),
        (Failure(0, 2, -9), "process 0 of 2 was ended by SIGKILL: was the machine out of memory?",
         137),
        (Failure(0, 2, -99), "process 0 of 2 was ended by signal 99", 227),
    ],
)  # fmt: skip
def test_a_failure_is_one_line(failure: Failure, text: str, status: int) -> None:
    assert (str(failure), failure.status) == (text, status)
