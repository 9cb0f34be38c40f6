"""R22, the short tier: a few workers killed under load, and a poison model."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import serving_workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills and stops processes")


@pytest.mark.integration
def test_killed_workers_are_replaced_and_a_poison_model_is_quarantined() -> None:
    tally = serving_workers.run_all(kills=3, workers=2, seed=1)
    assert tally.faults == []
    assert (tally.kills, tally.poisoned) == (3, 3)
    assert tally.lost <= 3 and tally.answers >= 30
    assert "wrong answers or other faults: 0 in" in tally.line()
