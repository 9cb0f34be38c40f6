"""evaluate_model: the loss and the metrics of a model file on data, without training it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import ColumnMissing
from onward.runner.config import make_config
from onward.runner.evaluate import evaluate
from onward.runner.open_session import open_session
from onward.runner.plan.make_plan import make_plan
from onward.runner.run import Run
from onward.runner.run_checkpoints import open_checkpoints
from onward.runner.run_folder import RunFolder

# The settings that say what is measured. Those of learning, and of changes to the model, do not.
_SETTINGS = (
    "target", "inputs", "ignore_columns", "types", "delimiter", "header", "block",
    "skip_broken", "tokenizer", "standardize", "data_threads", "loss", "label_smoothing",
    "ignore_index", "batch_size",
    "row_weights", "metrics", "monitor", "provider", "threads",
)  # fmt: skip


@dataclass(frozen=True)
class EvaluatedModel:
    """The numbers of a model: val_loss, val_accuracy, ..."""

    numbers: Mapping[str, float]
    monitor: str  # the number that models are compared by
    higher_is_better: bool


def evaluate_model(model: Path, data: Any, **settings: Any) -> EvaluatedModel:
    """Evaluate a model on all rows of `data`; `settings` are those of `onward.train`.

        evaluate_model(Path("model.onnx"), "held_out.csv").numbers["val_accuracy"]

    A model that `onward train` has exported is fed by its stored preprocessing.
    """
    chosen = {name: settings[name] for name in _SETTINGS if name in settings}
    if chosen.get("batch_size") == "auto":
        del chosen["batch_size"]
    config = make_config(chosen)
    try:
        plan = make_plan(config, model, data, data)
    except ColumnMissing:
        if config.row_weights is None:
            raise
        # rows to evaluate on count alike: the column is named only so that no input takes it
        config = config.model_copy(update={"row_weights": None})
        plan = make_plan(config, model, data, data)
    folder = RunFolder(model.parent)  # nothing is written to it
    with open_session(plan, config) as session:
        evaluation = evaluate(
            Run(config, plan, session, folder, open_checkpoints(folder, plan, config.keep))
        )
    assert evaluation is not None  # there is data to evaluate on, and nothing interrupts it
    return EvaluatedModel(evaluation.numbers, plan.monitor, plan.higher_is_better)
