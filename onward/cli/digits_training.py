"""The demo's lesson: a network learns digits, and whoever watches sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import Progress

from onward.cli.console import make_progress
from onward.cli.learning_curve import Curve
from onward.graph.files import Source
from onward.losses.classification import CrossEntropy
from onward.optimizers.adam import AdamW
from onward.optimizers.schedules import OneCycle
from onward.programs.options import TrainingOptions
from onward.runner.digits import TRAIN, Array, batches
from onward.sessions.training.session import TrainingSession

SIZE = 32  # images of a step
RATE = 3e-3
_BAR = 24  # characters of the first loss


@dataclass
class Lesson:
    """What a network learned, and how it went."""

    session: TrainingSession
    curve: Curve = field(default_factory=Curve)
    seconds: float = 0.0
    ended: bool = False  # before its time, by Ctrl-C


def learn(
    model: Source, images: Array, labels: Array, epochs: int, seed: int, console: Console
) -> Lesson:
    """Train on the first images, judge on the others; each epoch is a line on the console."""
    steps = epochs * (TRAIN // SIZE)
    options = TrainingOptions(schedule=OneCycle(steps=steps), outputs=["scores"], seed=seed)
    loss = CrossEntropy(output="scores")
    lesson = Lesson(TrainingSession(model, loss, AdamW(lr=RATE), options))
    start = time.perf_counter()
    with make_progress(console) as progress:
        try:
            _epochs(lesson, images, labels, epochs, seed, progress)
        except KeyboardInterrupt:
            lesson.ended = True
    lesson.seconds = time.perf_counter() - start
    return lesson


def _epochs(
    lesson: Lesson, images: Array, labels: Array, epochs: int, seed: int, progress: Progress
) -> None:
    session, curve, say = lesson.session, lesson.curve, progress.console.print
    held_out = {"image": images[TRAIN:], "labels": labels[TRAIN:]}
    mark = "#" if progress.console.options.ascii_only else "█"
    say(f"{'epoch':>9}   {'loss':{_BAR + 6}}   held out   steps/s", style="bold")
    curve.accuracies.append((0, accuracy(session, held_out)))
    task = progress.add_task("learning", total=epochs * (TRAIN // SIZE))
    for epoch in range(epochs):
        start, before = time.perf_counter(), session.steps
        for feeds in batches(images[:TRAIN], labels[:TRAIN], SIZE, [seed, epoch]):
            curve.losses.append(float(session.step(feeds)["loss"]))
            progress.update(task, advance=1, description=f"loss {curve.losses[-1]:.3f}")
        speed = (session.steps - before) / (time.perf_counter() - start)
        curve.accuracies.append((session.steps, accuracy(session, held_out)))
        say(_line(epoch + 1, epochs, curve, before, speed, mark))


def accuracy(session: TrainingSession, feeds: dict[str, Array]) -> float:
    """The share of the images whose digit has the highest score."""
    return share_right(session.evaluate(feeds)["scores"], feeds["labels"])


def share_right(scores: Array, labels: Array) -> float:
    """
    >>> share_right(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    return float(np.mean(scores.argmax(1) == labels))


def _line(epoch: int, epochs: int, curve: Curve, since: int, speed: float, mark: str) -> str:
    """One epoch: its mean loss, as a number and as a bar that gets shorter, and what it brought."""
    loss, first = float(np.mean(curve.losses[since:])), curve.losses[0]
    bar = mark * round(min(loss / max(first, 1e-9), 1.0) * _BAR)
    _, share = curve.accuracies[-1]
    count = f"{epoch}/{epochs}"
    return f"{count:>9}   {loss:.3f} {bar:{_BAR}}   {share:>8.1%}   {speed:>7,.0f}"
