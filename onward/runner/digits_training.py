"""Train the demo's digits classifier, and report each step and epoch to callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from onward.graph.files import Source
from onward.losses.classification import CrossEntropy
from onward.optimizers.adam import AdamW
from onward.optimizers.schedules import OneCycle
from onward.programs.options import TrainingOptions
from onward.runner.digits import TRAIN, Array, batches
from onward.runner.learning_curve import LearningCurve
from onward.sessions.training.session import TrainingSession

BATCH_SIZE = 32
LEARNING_RATE = 3e-3
STEPS_PER_EPOCH = TRAIN // BATCH_SIZE


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch achieved."""

    epoch: int  # from 1
    loss: float  # the mean of its steps
    first_loss: float  # of the whole training: what `loss` is compared with
    accuracy: float  # on the held-out images
    steps_per_second: float


@dataclass
class DigitsTraining:
    """A trained session and how the training went."""

    session: TrainingSession
    curve: LearningCurve = field(default_factory=LearningCurve)
    seconds: float = 0.0
    interrupted: bool = False  # by Ctrl-C


def train_digits(
    model: Source,
    images: Array,
    labels: Array,
    epochs: int,
    seed: int,
    *,
    on_step: Callable[[float], None] = lambda loss: None,
    on_epoch: Callable[[EpochSummary], None] = lambda summary: None,
) -> DigitsTraining:
    """Train on the first images and evaluate on the held-out ones; Ctrl-C ends it early."""
    schedule = OneCycle(steps=epochs * STEPS_PER_EPOCH)
    options = TrainingOptions(schedule=schedule, outputs=["scores"], seed=seed)
    loss = CrossEntropy(output="scores")
    session = TrainingSession(model, loss, AdamW(lr=LEARNING_RATE), options)
    training = DigitsTraining(session)
    curve = training.curve
    held_out = {"image": images[TRAIN:], "labels": labels[TRAIN:]}
    begin = time.perf_counter()
    try:
        curve.accuracies.append((0, evaluate_accuracy(session, held_out)))
        for epoch in range(epochs):
            start, before = time.perf_counter(), session.steps
            for feeds in batches(images[:TRAIN], labels[:TRAIN], BATCH_SIZE, [seed, epoch]):
                curve.losses.append(float(session.step(feeds)["loss"]))
                on_step(curve.losses[-1])
            speed = (session.steps - before) / (time.perf_counter() - start)
            accuracy = evaluate_accuracy(session, held_out)
            curve.accuracies.append((session.steps, accuracy))
            mean_loss = float(np.mean(curve.losses[before:]))
            on_epoch(EpochSummary(epoch + 1, mean_loss, curve.losses[0], accuracy, speed))
    except KeyboardInterrupt:
        training.interrupted = True
    training.seconds = time.perf_counter() - begin
    return training


def evaluate_accuracy(session: TrainingSession, feeds: dict[str, Array]) -> float:
    """The share of the images whose digit has the highest score."""
    return accuracy_of(session.evaluate(feeds)["scores"], feeds["labels"])


def accuracy_of(scores: Array, labels: Array) -> float:
    """
    >>> accuracy_of(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    return float(np.mean(scores.argmax(1) == labels))
