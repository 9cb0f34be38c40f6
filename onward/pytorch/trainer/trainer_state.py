"""TrainerState, and what a Trainer's methods return: with the names that Hugging Face's have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onward.errors import CheckpointError


@dataclass
class TrainerState:
    """How far a run is, and everything that it logged."""

    epoch: float = 0.0
    global_step: int = 0
    max_steps: int = 0
    num_train_epochs: int = 0
    train_batch_size: int = 0
    logging_steps: int = 0
    eval_steps: int = 0
    save_steps: int = 0
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    log_history: list[dict[str, Any]] = field(default_factory=list)
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> TrainerState:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{path} cannot be read as the state of a Trainer: {error}\n"
                "resume from a checkpoint that onward.pytorch.Trainer wrote"
            ) from error


@dataclass
class TrainerControl:
    """What callbacks ask for; they set its fields."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False


class TrainOutput(NamedTuple):
    """The result of `train`."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class PredictionOutput(NamedTuple):
    """The result of `predict`."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float]


@dataclass(frozen=True)
class EvalPrediction:
    """What `compute_metrics` takes: arrays, or tuples of arrays."""

    predictions: Any
    label_ids: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.predictions, self.label_ids))


class Callbacks:
    """Calls the methods of callbacks that exist: on_step_end(args, state, control, **others)."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = [each() if isinstance(each, type) else each for each in callbacks]

    def call(self, event: str, args: Any, state: TrainerState, control: Any, **others: Any) -> None:
        for callback in self._callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                method(args, state, control, **others)
