"""R7b, the short tier: a few interruptions of one run of `onward train`."""

from __future__ import annotations

import os

import pytest

from conformance.reliability import interruptions

pytestmark = pytest.mark.integration


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each attempt is a forked process")
def test_interrupted_training_is_bit_identical() -> None:
    tally = interruptions.interrupt_run("tabular", times=3, seed=1, flags="--epochs 4")
    assert not tally.fault and tally.counts.total() == 3
    assert tally.line().endswith("weights equal")
