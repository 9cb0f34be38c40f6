"""Logical shards: the same bits on any number of processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward import OpBuilder, TrainingSession
from onward.distributed.parallel import Parallel
from onward.errors import DistributedError, OptionError
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.programs.batch_rows import rows_of_process
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import CLASSES, WIDTH, batches, open_session, trained

pytestmark = pytest.mark.integration

ROWS, SHARDS = 11, 4
CASES: list[dict[str, Any]] = [
    {"model": {"dropout": 0.5, "batch_norm": True}},
    {"options": {"accumulate": 2, "clip_norm": 0.05}, "ignored": -1},
    {"optimizer": "lamb"},
]


def train_rows(rank: int, size: int) -> list[Any]:
    found = []
    for case in CASES:
        rows = rows_of_process(ROWS, rank, size, SHARDS)
        feeds = [
            {name: array[rows.start : rows.stop] for name, array in each.items()}
            for each in batches(6, ROWS, ignored=case.get("ignored"))
        ]
        with open_session(case, parallel=Parallel(logical_shards=SHARDS, bucket=300)) as session:
            found.append(trained(session, feeds))
    return found


def test_any_number_of_processes_gives_the_same_bits() -> None:
    expected = run_processes(train_rows, 1, 1)[0]
    for size in (2, 3):
        for found in run_processes(train_rows, size, size):
            for (losses, weights), (expected_losses, tensors) in zip(found, expected):
                assert losses == expected_losses
                for name, tensor in tensors.items():
                    np.testing.assert_array_equal(weights[name], tensor, err_msg=name)


def step_with_a_scalar_first(rank: int) -> float:
    op = OpBuilder(18)
    scale = op.input("scale", "float32", ())
    x = op.Mul(op.input("x", "float32", ("batch", WIDTH)), scale)
    model = op.model(y=op.MatMul(x, op.initializer("w", np.ones((WIDTH, CLASSES), np.float32))))
    [feeds] = batches(1, ROWS)
    rows = rows_of_process(ROWS, rank, 2, SHARDS)
    own = {name: feeds[name][rows.start : rows.stop] for name in feeds}
    with TrainingSession(
        model, CrossEntropy(), SGD(), parallel=Parallel(logical_shards=SHARDS)
    ) as session:
        return float(session.step({"scale": np.ones((), np.float32), **own})["loss"])


def test_a_scalar_as_the_first_feed_has_no_rows() -> None:
    first, second = run_processes(step_with_a_scalar_first, 2)
    assert first == second


def refuse_wrong_use(rank: int) -> None:
    session = open_session({}, parallel=Parallel(logical_shards=3))
    with pytest.raises(DistributedError, match="logical shards"):
        session.step(batches(1, 4)[0])
    with pytest.raises(OptionError, match="run_forward does not support logical_shards"):
        session.run_forward(batches(1, 4)[0])
    with pytest.raises(OptionError, match="1 logical shards are too few for 2 processes"):
        open_session({}, parallel=Parallel(logical_shards=1))


def test_logical_shards_refuse_other_rows_run_forward_and_too_many_processes() -> None:
    run_processes(refuse_wrong_use, 2)
