"""R4, R5, R6 and R8 of sharded checkpoints, and split brain: the short tiers."""

from __future__ import annotations

import sys

import pytest

from conformance.reliability import (
    damaged_shards,
    full_shard_disks,
    replayed_sharded_saves,
    split_brain,
    torn_sharded_saves,
)
from onward.checkpoints.sharded import sharded_checkpoint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and sockets are POSIX's")


@pytest.mark.integration
def test_no_checkpoint_is_lost_when_a_writer_of_the_group_is_killed() -> None:
    tally = torn_sharded_saves.kill_all(4, seed=5, by_clock=False)
    assert not tally.faults
    assert tally.kills == 4 and tally.midway > 0
    assert "lost or torn: 0 in 4: < 3/4" in tally.line()


@pytest.mark.integration
def test_newest_sharded_checkpoint_loads_after_a_power_failure() -> None:
    with replayed_sharded_saves.quiet():
        tally = replayed_sharded_saves.replay_all(2, 1, seed=1)
    assert not tally.faults
    assert tally.operations > 50 and tally.states > 100


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_missing_syncs_of_sharded_saves_are_detected(forgotten: str) -> None:
    with replayed_sharded_saves.quiet():
        tally = replayed_sharded_saves.replay_all(1, 1, seed=1, forgotten=forgotten)
    assert tally.faults


def test_every_damage_to_a_part_is_named_and_a_good_checkpoint_used() -> None:
    tally = damaged_shards.damage_all(40, 20, seed=3)
    assert not tally.faults
    assert tally.kinds == {"flipped bits": 40, "cuts": 20, "sets of missing files": 15}


def test_reader_that_verifies_nothing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sharded_checkpoint.ShardedCheckpoint, "verify", lambda self, files=None: self.trust()
    )
    assert damaged_shards.damage_all(20, 0, seed=3).faults


@pytest.mark.integration
def test_failed_disk_of_one_rank_is_reported_by_all_and_loses_nothing() -> None:
    tally = full_shard_disks.fail_all(every=7)
    assert not tally.faults
    assert tally.reported.total() > 20 and {"write", "sync", "names"} & set(tally.reported)


@pytest.mark.integration
def test_group_that_was_replaced_commits_nothing() -> None:
    tally = split_brain.take_over_all(2, seed=1)
    assert not tally.faults
    assert tally.takeovers == 2 and tally.saved > 0
