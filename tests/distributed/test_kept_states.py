"""What compression and local steps keep is in checkpoints: a restored run continues bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.sharded.newest import read_newest
from onward.distributed import (
    DiLoCo,
    Int8,
    LocalSGD,
    Parallel,
    PowerSGD,
    ShardedCheckpoints,
    TopK,
)
from onward.distributed.communicator import Communicator
from onward.errors import CheckpointMismatch
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part

pytestmark = pytest.mark.integration

SETTINGS = {
    "int8": Parallel(compression=Int8()),
    "top-k": Parallel(compression=TopK(share=0.1)),
    "powersgd": Parallel(compression=PowerSGD(rank=1)),
    "local sgd": Parallel(local_steps=LocalSGD(every=2)),
    "diloco": Parallel(local_steps=DiLoCo(every=2)),
}
CASE = {"optimizer": "sgd"}


def own_batches(rank: int, size: int = 2) -> list[Any]:
    return [part(each, rank, [12 // size] * size) for each in batches(8, 12)]


def weights_of(session: Any) -> dict[str, Any]:
    return {name: np.array(tensor) for name, tensor in session.parameters.items()}


def train(rank: int, cut: int | None, folder: str) -> list[dict[str, Any]]:
    """The weights for each of the settings; from `cut` on, in a session that was restored."""
    found = []
    for name, parallel in SETTINGS.items():
        session = open_session(CASE, parallel=parallel)
        for i, feeds in enumerate(own_batches(rank)):
            if i == cut and parallel.compression is not None:  # all parts in one checkpoint
                checkpoints = ShardedCheckpoints(f"{folder}/{name}", communicator=Communicator())
                checkpoints.save(*session.checkpoint_pieces(), step=i)
                session = open_session(CASE, parallel=parallel)
                saved = read_newest(f"{folder}/{name}")
                session.restore(saved.tensors, saved.properties)
            elif i == cut:  # between two averages, each process has its own weights
                saved_here = session.checkpoint()
                session = open_session(CASE, parallel=parallel)
                session.restore(*saved_here)
            session.step(feeds)
        found.append(weights_of(session))
    return found


def test_a_restored_run_continues_bit_for_bit(tmp_path: Path) -> None:
    expected = run_processes(train, 2, None, "")
    for rank, all_weights in enumerate(run_processes(train, 2, 3, str(tmp_path))):
        for name, weights, wanted in zip(SETTINGS, all_weights, expected[rank], strict=True):
            for key in wanted:
                np.testing.assert_array_equal(weights[key], wanted[key], err_msg=f"{name} {key}")


def save(rank: int, folder: str) -> dict[str, Any]:
    session = open_session(CASE, parallel=SETTINGS["top-k"])
    for feeds in own_batches(rank)[:3]:
        session.step(feeds)
    checkpoints = ShardedCheckpoints(folder, communicator=Communicator())
    checkpoints.save(*session.checkpoint_pieces(), step=3)
    return session.checkpoint()[0]


def restore(rank: int, folder: str, size: int) -> dict[str, Any]:
    session = open_session(CASE, parallel=SETTINGS["top-k"])
    saved = read_newest(folder)
    session.restore(saved.tensors, saved.properties)
    kept = session.checkpoint()[0]
    session.step(own_batches(rank, size)[3])
    other = open_session(CASE, parallel=Parallel(compression=TopK(share=0.1), bucket=300))
    with pytest.raises(CheckpointMismatch, match="use the bucket size of the saved run"):
        other.restore(saved.tensors, saved.properties)
    assert other.steps == 0
    for parallel in (Parallel(), SETTINGS["powersgd"], SETTINGS["diloco"]):
        plain = open_session(CASE, parallel=parallel)
        plain.restore(saved.tensors, saved.properties)
        assert not any("TopK" in name for name in plain.checkpoint()[0])
    return kept


def test_gradients_that_were_kept_go_to_another_number_of_processes(tmp_path: Path) -> None:
    saved = run_processes(save, 2, str(tmp_path))
    errors = [saved[rank][f"processes/2/{rank}/TopK/0/error"] for rank in range(2)]
    found = run_processes(restore, 3, str(tmp_path), 3)
    for rank in range(3):
        kept = found[rank][f"processes/3/{rank}/TopK/0/error"]
        np.testing.assert_allclose(kept * 3, errors[0] + errors[1], rtol=1e-6)
    with open_session(CASE) as alone:  # one process has nothing to send
        assert not any(name.startswith("processes/") for name in alone.checkpoint()[0])


def set_weights(rank: int) -> dict[str, Any]:
    session = open_session(CASE, parallel=SETTINGS["diloco"])
    session.set_learning_rate(0.0)
    session.set_parameters({name: np.ones_like(w) for name, w in session.parameters.items()})
    for feeds in own_batches(rank)[:2]:
        session.step(feeds)
    return weights_of(session)


def test_diloco_begins_with_weights_that_were_set() -> None:
    for weights in run_processes(set_weights, 2):
        for name, tensor in weights.items():
            np.testing.assert_array_equal(tensor, np.ones_like(tensor), err_msg=name)
