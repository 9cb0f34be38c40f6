"""R4, the short tier: a few writers that kill themselves at random operations."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import torn_saves


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a signal")
def test_no_checkpoint_is_lost_when_its_writer_is_killed() -> None:
    tally = torn_saves.kill_all(8, seed=5, by_clock=False)
    assert not tally.faults
    assert tally.kills == 8 and 0 < tally.midway < 8 and tally.saved > 0
    assert "lost or torn: 0 in 8: < 3/8" in tally.line()
