"""Compression and local steps in a session: processes agree, and come close to plain training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.distributed import DiLoCo, HalfPrecision, Int8, LocalSGD, Parallel, PowerSGD, TopK
from onward.errors import FeedError, OptionError
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part, trained

pytestmark = pytest.mark.integration

ROWS = 12
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "half": {"compression": HalfPrecision()},
    "int8": {"compression": Int8()},
    "power_sgd": {"compression": PowerSGD(rank=4)},
    "top_k": {"compression": TopK(share=0.5)},
    "local_sgd": {"local_steps": LocalSGD(every=4)},
    "diloco": {"local_steps": DiLoCo(every=4)},
}


def train_with_each_method(rank: int) -> dict[str, Any]:
    feeds = [part(each, rank, (6, 6)) for each in batches(4, ROWS) * 10]
    found = {}
    for name, settings in METHODS.items():
        with open_session({"optimizer": "sgd"}, parallel=Parallel(**settings)) as session:
            _, weights = trained(session, feeds)
            whole = [float(session.evaluate(each)["loss"]) for each in batches(4, ROWS)]
            assert session.bytes_sent > 0, name
            found[name] = (np.mean(whole), weights)
    return found


def test_every_method_trains_and_processes_agree() -> None:
    first, second = run_processes(train_with_each_method, 2)
    with open_session({"optimizer": "sgd"}) as session:
        begun = np.mean([float(session.evaluate(each)["loss"]) for each in batches(4, ROWS)])
    for name, (loss, weights) in first.items():
        gained = (begun - loss) / (begun - first["plain"][0])
        assert gained > 0.5, f"{name}: the loss fell from {begun:.3f} to {loss:.3f} only"
        for key, tensor in weights.items():
            np.testing.assert_array_equal(tensor, second[name][1][key], err_msg=f"{name} {key}")


def train_without_rows(rank: int) -> None:
    feeds = part(batches(1, ROWS)[0], rank, (12, 0))
    with open_session({}, parallel=Parallel(local_steps=LocalSGD())) as session:
        if rank == 1:
            with pytest.raises(FeedError, match="without rows"):
                session.step(feeds)


def test_local_steps_need_rows() -> None:
    run_processes(train_without_rows, 2)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="compression and local_steps exclude each other"):
        Parallel(compression=Int8(), local_steps=LocalSGD())
    with pytest.raises(OptionError, match="logical_shards and shard exclude each other"):
        Parallel(logical_shards=4, shard=2)
    with pytest.raises(OptionError, match=r"must be settings of onward\.distributed, not 'fp16'"):
        Parallel(compression="fp16")  # type: ignore[arg-type]
