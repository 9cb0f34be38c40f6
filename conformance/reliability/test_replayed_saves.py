"""R5, the short tier: a few saves; and proof that a sync that is forgotten would be found."""

from __future__ import annotations

import pytest

from conformance.reliability import replayed_saves


def test_the_newest_checkpoint_loads_wherever_the_power_goes() -> None:
    with replayed_saves.quiet():
        tally = replayed_saves.replay_all(5, 1, seed=1)
    assert not tally.faults
    assert tally.operations > 60 and tally.states > 150


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_a_disk_that_does_not_sync_would_lose_some(forgotten: str) -> None:
    with replayed_saves.quiet():
        tally = replayed_saves.replay_all(3, 1, seed=1, forgotten=forgotten)
    assert tally.faults
