"""R15, the short tier."""

from __future__ import annotations

import random

import numpy as np
import pytest

from conformance.reliability import injected_nans
from conformance.reliability.resume_runs import OPTIMIZERS


@pytest.mark.parametrize("model", ["dropout", "batch norm"])
def test_nonfinite_batches_never_change_the_weights(model: str) -> None:
    tally = injected_nans.inject_all(8, seed=2, models=[model], optimizers=OPTIMIZERS[2:4])
    assert not tally.faults and tally.injected == 16  # of a session, and of a device


@pytest.mark.parametrize("kind", injected_nans.POISONS)
def test_one_row_is_bad_and_the_others_are_good(kind: str) -> None:
    x = injected_nans.poisoned(0, kind, random.Random(0))["x"]
    bad = ~np.isfinite(x) | (np.abs(x) > 1e30)
    assert bad.any() and bad.any(1).sum() == 1
