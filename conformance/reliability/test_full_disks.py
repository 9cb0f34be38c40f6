"""R8, the short tier: every third operation, and the system's own limit."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import full_disks


def test_failed_save_is_reported_and_loses_nothing() -> None:
    tally = full_disks.fail_all(every=3)
    assert not tally.faults
    assert tally.reported.total() > 30 and {"write", "sync"} & set(tally.reported)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is POSIX's, its words are Linux's")
def test_system_limit_is_reported_like_an_injected_error() -> None:
    assert full_disks.real_limit() == ""
