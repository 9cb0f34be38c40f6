"""Training of the demo's classifier: learning, progress callbacks, seeds and Ctrl-C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.runner import digits_training
from onward.runner.digits import TRAIN, build_network, load_digits
from onward.runner.digits_training import DigitsTraining, EpochSummary, train_digits


def train(epochs: int, **callbacks: Any) -> DigitsTraining:
    images, labels = load_digits()
    return train_digits(build_network(), images, labels, epochs, 0, **callbacks)


def test_loss_falls_and_accuracy_rises() -> None:
    losses: list[float] = []
    summaries: list[EpochSummary] = []
    training = train(2, on_step=losses.append, on_epoch=summaries.append)
    curve, steps = training.curve, 2 * (TRAIN // digits_training.BATCH_SIZE)
    assert len(curve.losses) == training.session.steps == steps
    assert np.mean(curve.losses[-10:]) < 0.7 * np.mean(curve.losses[:10])
    (start, before), (half, _), (end, after) = curve.accuracies
    assert (start, half, end) == (0, 37, 74) and after > before + 0.4
    assert not training.interrupted and training.seconds > 0
    assert losses == curve.losses
    assert [summary.epoch for summary in summaries] == [1, 2]
    assert summaries[1].loss == pytest.approx(np.mean(curve.losses[37:]))
    assert summaries[1].accuracy == after and summaries[1].first_loss == losses[0]


def test_same_seed_repeats_the_training() -> None:
    assert train(1).curve == train(1).curve


def test_ctrl_c_keeps_the_steps_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_batches(*arguments: Any) -> Any:
        for count, batch in enumerate(batches(*arguments)):
            if count == 5:
                raise KeyboardInterrupt
            yield batch

    batches = digits_training.batches
    monkeypatch.setattr(digits_training, "batches", interrupted_batches)
    training = train(3)
    assert training.interrupted and training.session.steps == len(training.curve.losses) == 5
