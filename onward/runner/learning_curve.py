"""The learning curve of the demo: the loss at each step, the accuracy after each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from onward.graph.paths import writing
from onward.runner.figures.curves import Panel, Series, draw_panels
from onward.runner.figures.figure import Figure
from onward.runner.figures.svg import svg_text


@dataclass
class LearningCurve:
    """Losses and accuracies of a training."""

    losses: list[float] = field(default_factory=list)  # of each step
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (after steps, 0 to 1)


def write_learning_curve(curve: LearningCurve, path: Path) -> None:
    """Write the picture as an SVG file."""
    with writing(path):
        path.write_text(svg_text(draw_learning_curve(curve)), "utf-8")


def draw_learning_curve(curve: LearningCurve) -> Figure:
    """The loss with its running average, and the accuracy below."""
    steps = [(float(step), loss) for step, loss in enumerate(curve.losses, 1)]
    loss = Series("training loss", steps, smoothed=True, name="loss")
    accuracy = Series("held-out accuracy", curve.accuracies, name="accuracy")
    return draw_panels([Panel("loss", [loss]), Panel("accuracy", [accuracy], percent=True)])
