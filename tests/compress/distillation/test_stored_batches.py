"""StoredBatches: each epoch holds every batch once; the order depends only on the seed."""

from __future__ import annotations

import numpy as np
import pytest

from onward.compress.calibration import Calibration
from onward.compress.distillation.stored_batches import StoredBatches
from onward.graph.node_args import NodeArg

X = NodeArg("x", "tensor(float)", ["n", 2], True)


def batches(count: int, **options: int) -> StoredBatches:
    data = [
        ({"x": np.full((3, 2), place, np.float32)}, np.array([place])) for place in range(count)
    ]
    return StoredBatches(Calibration(data, [X]), **{"seed": 0, **options})


@pytest.mark.parametrize("memory", [0, 50, 1 << 20])
def test_each_epoch_holds_every_batch_once(memory: int) -> None:
    stored = batches(5, memory=memory)
    for epoch in range(3):
        seen = []
        for step in range(5):
            number, (feeds, targets) = stored.at(5 * epoch + step)
            assert feeds["x"][0, 0] == number == targets[0]
            assert stored.epoch(5 * epoch + step) == epoch
            seen.append(number)
        assert sorted(seen) == list(range(5))
    assert stored.count == 5


def test_order_depends_only_on_the_seed() -> None:
    a, b, c = batches(20), batches(20), batches(20, seed=1)
    assert a.count == 20
    ours = [a.at(step)[0] for step in range(20, 40)]
    assert ours == [b.at(step)[0] for step in range(20, 40)]  # b has not been read before
    assert ours != [c.at(step)[0] for step in range(20, 40)] and ours != list(range(20))
