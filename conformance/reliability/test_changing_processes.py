"""R10: 4 processes, then 3, then 4 again."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import changing_processes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes die with their agent on Linux")
def test_run_on_4_then_3_then_4_processes_is_bit_identical() -> None:
    tally = changing_processes.change_processes()
    assert not tally.fault, tally.line()
    assert [each["processes"] for each in tally.starts] == [4, 3, 4]
