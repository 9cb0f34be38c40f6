"""R5, the short tier: a few saves; and proof that a sync that is forgotten would be found."""

from __future__ import annotations

import pytest

from conformance.reliability import replayed_saves


@pytest.mark.integration
def test_newest_checkpoint_loads_after_a_power_failure() -> None:
    with replayed_saves.quiet():
        tally = replayed_saves.replay_all(5, 1, seed=1)
    assert not tally.faults
    assert tally.operations > 60 and tally.states > 150


@pytest.mark.integration
@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_missing_syncs_are_detected(forgotten: str) -> None:
    with replayed_saves.quiet():
        tally = replayed_saves.replay_all(3, 1, seed=1, forgotten=forgotten)
    assert tally.faults
