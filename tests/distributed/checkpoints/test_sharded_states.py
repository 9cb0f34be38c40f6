"""Saved states of a run whose processes write their parts, and of one process that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.sharded.newest import open_newest
from onward.checkpoints.sharded.stored_tensors import StoredTensors
from onward.distributed.checkpoints.group_results import OneProcess
from onward.distributed.checkpoints.sharded_states import OneProcessCheckpoints, ShardedStates
from onward.distributed.communicator import Communicator
from onward.distributed.parallel import Parallel
from onward.errors import RunFenced
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part

pytestmark = pytest.mark.integration

CASE = {"model": {"batch_norm": True}}


def copied(session: Any) -> dict[str, Any]:
    return {name: np.array(tensor) for name, tensor in session.checkpoint()[0].items()}


def continue_sharded(rank: int, folder: str) -> Any:
    """Resume what one process saved in a session of ZeRO 3, take a step, and save it in parts."""
    states = ShardedStates(Path(folder), Communicator(), keep=2, better="lower")
    with open_session(CASE, parallel=Parallel(shard=2, zero=3, bucket=300)) as session:
        found = states.latest()
        assert found is not None and found.step == 1
        session.restore(found.tensors, found.properties)
        resumed = copied(session)
        session.step(part(batches(1, 12, seed=1)[0], rank, (8, 4)))
        assert states.begin_save(session, 2, 0.5).wait() is not None
        best = states.best()
        assert (best is None) == bool(rank)
        return resumed, copied(session)


def test_one_process_and_zero_3_continue_each_other(tmp_path: Path) -> None:
    with open_session(CASE) as one:
        one.step(batches(1, 12)[0])
        Checkpoints(tmp_path).save(*one.checkpoint(), step=1)
        saved = copied(one)
    ranks = run_processes(continue_sharded, 2, str(tmp_path))
    for resumed, stepped in ranks:
        for name, tensor in saved.items():
            np.testing.assert_array_equal(resumed[name], tensor, err_msg=name)
            np.testing.assert_array_equal(stepped[name], ranks[0][1][name], err_msg=name)
    parts = [each.stat().st_size for each in tmp_path.glob("step-*/part-*")]
    assert len(parts) == 2 and max(parts) < 0.75 * sum(parts)  # no process holds all
    states = OneProcessCheckpoints(tmp_path, keep=2, better="lower")
    found = states.latest()
    assert found is not None and found.step == 2
    with open_session(CASE) as one:
        one.restore(found.tensors, found.properties)
        assert one.steps == 2
        for name, tensor in copied(one).items():
            np.testing.assert_array_equal(tensor, ranks[0][1][name], err_msg=name)
        assert states.try_save(*one.checkpoint(), step=3) is not None
    found = states.latest()
    assert found is not None and found.step == 3  # newer than what the processes wrote


def test_an_older_group_cannot_save(tmp_path: Path) -> None:
    with open_session({}) as session:
        old = ShardedStates(tmp_path, OneProcess(), keep=3, better="lower")
        assert old.begin_save(session, 1, None).wait() is not None
        new = ShardedStates(tmp_path, OneProcess(), keep=3, better="lower")
        found = new.latest()
        assert found is not None and found.step == 1
        with pytest.raises(RunFenced, match="owns the run now, with token 2"):
            old.begin_save(session, 2, None).wait()
        assert new.begin_save(session, 2, None).wait() is not None


def test_stored_tensors_are_read_when_asked_for(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save({"w": np.ones((2, 3)), "b": np.zeros(3)}, {}, step=1)
    opened = open_newest(tmp_path)
    assert opened is not None
    tensors = StoredTensors(opened)
    assert [*tensors] == ["w", "b"] and len(tensors) == 2 and "x" not in tensors
    assert tensors.specs["w"].shape == (2, 3)
    np.testing.assert_array_equal(tensors["w"], np.ones((2, 3)))
    with pytest.raises(KeyError):
        tensors["x"]
