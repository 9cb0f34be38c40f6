"""Train a student step by step, within a number of steps or seconds, so that it can continue."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints import tensor_files
from onward.compress.calibration import Array, Feeds
from onward.compress.progress_steps import Progress, no_progress
from onward.errors import NotFinite, OptionError
from onward.providers.choose import Asked
from onward.sessions.training.session import TrainingSession

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.losses.loss import Loss
    from onward.optimizers.optimizer import Optimizer
    from onward.programs.training_options import TrainingOptions


STEPS = 500  # if the user gives neither steps nor seconds
_MOST_SKIPPED = 20  # updates in a row that are not finite, after which training stops
_SHOWN_EACH = 0.2  # seconds between two calls of `progress`
_FILE = "student.safetensors"
_SCHEDULES = ("cosine", "high-low", "constant")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When training ends: after steps, after seconds, whichever is first.

    Attributes:
        steps: the number of updates; None: no limit
        seconds: the time from the first step on; the clock is read between steps; None: no limit
        schedule: of the learning rate: "cosine" to a tenth, "high-low" (a tenth in the last third)
            or "constant"
    """

    steps: int | None = None
    seconds: float | None = None
    schedule: str = "cosine"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise OptionError(f"steps must be at least 1, not {self.steps}")
        if self.seconds is not None and not self.seconds > 0:
            raise OptionError(f"seconds must be more than 0, not {self.seconds}")
        if self.schedule not in _SCHEDULES:
            raise OptionError(
                f"there is no schedule {self.schedule!r}\nthere are {', '.join(_SCHEDULES)}"
            )

    def done(self, steps: int, seconds: float) -> float:
        """The share of training that is done: 1 at the end."""
        most = STEPS if self.steps is None and self.seconds is None else self.steps
        by_steps = steps / most if most is not None else 0.0
        by_time = seconds / self.seconds if self.seconds is not None else 0.0
        return max(by_steps, by_time)

    def factor(self, done: float) -> float:
        """What the learning rate is multiplied by, after this share of training."""
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "high-low":
            return 1.0 if done < 2 / 3 else 0.1
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0)))


@dataclass
class TrainedStudent:
    """The result of training.

    Attributes:
        tensors: the parameters and statistics by name
        steps: the number of updates, those of earlier calls included
        skipped: updates that were skipped because gradients were not finite
        seconds: the time of all steps
        losses: the loss of each step of this call
    """

    tensors: dict[str, Array]
    steps: int
    skipped: int
    seconds: float
    losses: list[float] = field(default_factory=list)


def train_student(
    model: ir.Model,
    loss: Loss,
    optimizer: Optimizer,
    options: TrainingOptions,
    feeds_at: Callable[[int], Feeds],
    limits: Limits,
    *,
    folder: str | os.PathLike[str] | None = None,
    key: str = "",
    providers: Asked = None,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
) -> TrainedStudent:
    """Train a model; `feeds_at(step)` are the feeds of a step.

    With a folder, an interrupted call (Ctrl-C) saves its state there; a call with the same `key`
    continues it and removes the file at the end.
    """
    progress("compile the training step", 0.0, None)
    with TrainingSession(model, loss, optimizer, options, providers=providers) as session:
        path = Path(folder) / _FILE if folder is not None else None
        used = _continue(session, path, key)
        losses: list[float] = []
        try:
            used = _run_steps(
                session, optimizer.lr, feeds_at, limits, used, losses, progress, clock
            )
        except KeyboardInterrupt as interrupt:
            if path is not None:
                seconds = float(getattr(interrupt, "seconds", used))
                session.properties = {"key": key, "seconds": seconds}
                path.parent.mkdir(parents=True, exist_ok=True)
                session.save(path)
            raise
        if path is not None:
            path.unlink(missing_ok=True)
        tensors = {**session.parameters, **session.statistics}
        return TrainedStudent(tensors, session.steps, session.skipped_steps, used, losses)


def _continue(session: TrainingSession, path: Path | None, key: str) -> float:
    """Restore the state of an interrupted call; return the seconds that it took."""
    if path is None or not path.exists():
        return 0.0
    found = tensor_files.read(path)
    user = found.properties.get("user", {})
    if user.get("key") != key:
        raise OptionError(
            f"{path} is of another training: its models, data or settings differ\n"
            "give another folder, or remove the file"
        )
    session.restore(found.tensors, found.properties, where=str(path))
    return float(user["seconds"])


def _run_steps(
    session: TrainingSession,
    rate: float,
    feeds_at: Callable[[int], Feeds],
    limits: Limits,
    used: float,
    losses: list[float],
    progress: Progress,
    clock: Callable[[], float],
) -> float:
    start, shown, in_a_row = clock() - used, -math.inf, 0
    try:
        while True:
            now = clock() - start
            tried = session.steps + session.skipped_steps
            done = limits.done(tried, now)
            if done >= 1:
                break
            if now - shown >= _SHOWN_EACH:
                shown = now
                text = f"train, loss {losses[-1]:.4g}" if losses else "train"
                progress(text, done, 1.0)
            feeds = feeds_at(tried)
            session.set_learning_rate(rate * limits.factor(done))
            skipped = session.skipped_steps
            losses.append(float(session.step(feeds)["loss"]))
            in_a_row = in_a_row + 1 if session.skipped_steps > skipped else 0
            if in_a_row >= _MOST_SKIPPED:
                raise NotFinite(
                    f"the gradients of {in_a_row} steps in a row are not finite\n"
                    "give a lower learning rate, or check the data and the models"
                )
    except KeyboardInterrupt as interrupt:
        interrupt.seconds = clock() - start  # type: ignore[attr-defined]
        raise
    return clock() - start
