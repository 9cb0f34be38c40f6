"""The state of a TrainingSession goes through sharded checkpoints of any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.sharded.newest import read_newest
from onward.checkpoints.sharded.pieces import Piece
from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.sessions.training.session import TrainingSession
from tests.checkpoints.sharded.sharded_folders import DISK
from tests.sessions.training.small import batches, mlp


def session() -> TrainingSession:
    return TrainingSession(mlp(dropout=0.5), CrossEntropy(), AdamW(lr=0.02))


def shard_pieces(tensors: Mapping[str, Any], rank: int, size: int) -> dict[str, Piece]:
    """A rank's part of one flat vector of all tensors, as ZeRO 3 cuts it: most lie on one rank."""
    total, begin, found = sum(tensor.size for tensor in tensors.values()), 0, {}
    low, high = total * rank // size, total * (rank + 1) // size
    for name, tensor in tensors.items():
        start, stop = max(low - begin, 0), min(high - begin, tensor.size)
        if start < stop:
            flat = np.ascontiguousarray(tensor).reshape(-1)
            found[name] = Piece(array=flat[start:stop], start=start, shape=tensor.shape)
        begin += tensor.size
    return found


def save_sharded(folder: Path, one: TrainingSession, size: int) -> None:
    tensors, properties = one.checkpoint()

    def save(group: ThreadRank) -> None:
        checkpoints = ShardedCheckpoints(folder, communicator=group, disk=DISK)
        checkpoints.save(shard_pieces(tensors, group.rank, size), properties, one.steps)

    run_ranks(size, save)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_shards_load_into_one_process_which_goes_on_bit_for_bit(tmp_path: Path, size: int) -> None:
    feeds = batches(6)
    one = session()
    for batch in feeds[:3]:
        one.step(batch)
    save_sharded(tmp_path, one, size)
    found = read_newest(tmp_path)
    assert found is not None
    two = session()
    two.restore(found.tensors, found.properties)
    assert two.steps == 3
    for batch in feeds[3:]:
        assert one.step(batch)["loss"] == two.step(batch)["loss"]
    for name, tensor in one.checkpoint()[0].items():
        assert tensor.tobytes() == two.checkpoint()[0][name].tobytes()
    two.export(tmp_path / "model.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"))


def test_a_checkpoint_of_one_process_loads_into_shards(tmp_path: Path) -> None:
    one = session()
    one.step(batches(1)[0])
    tensors, properties = one.checkpoint()
    Checkpoints(tmp_path, disk=DISK).save(tensors, properties, one.steps)

    def load(group: ThreadRank) -> dict[str, Any]:
        found = ShardedCheckpoints(tmp_path, communicator=group, disk=DISK).latest()
        assert found is not None and found.properties == properties
        wanted = shard_pieces(tensors, group.rank, group.size)
        return {name: found.read_range(name, *piece.span) for name, piece in wanted.items()}

    parts = run_ranks(3, load)
    for name, tensor in tensors.items():
        joined = np.concatenate([part[name] for part in parts if name in part])
        assert joined.tobytes() == tensor.tobytes()
