"""The loss scale of a session: it may fall, but never so far that nothing can be divided by it."""

from __future__ import annotations

import numpy as np
import pytest

from onward.losses import CrossEntropy
from onward.optimizers import SGD, DynamicLossScale
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.session_loss_scale import LossScale
from tests.sessions.training.small import batches, mlp


def test_a_scale_stays_one_that_float32_can_divide_by() -> None:
    least = float(np.finfo(np.float32).tiny)
    scale = LossScale(DynamicLossScale(initial=least, interval=1))
    scale.update(False)
    assert scale.value == scale.state()["scale"] == least
    scale.update(True)
    assert scale.value == 2 * least


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_many_bad_batches_do_not_end_training(clip_norm: float | None) -> None:
    options = {"loss_scale": DynamicLossScale(initial=1.0, backoff=1e-30), "clip_norm": clip_norm}
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1), options)
    good = batches(1)[0]
    bad = {**good, "x": np.full_like(good["x"], np.nan)}
    for _ in range(3):
        one.step(bad)
    one.step(good)
    assert one.skipped_steps == 3 and one.loss_scale > 0
    assert all(np.isfinite(tensor).all() for tensor in one.parameters.values())
