"""Continuous training of real models: `watch` with `onward.train` and its evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import DataError, OptionError
from onward.graph.files import load
from onward.graph.paths import to_path
from onward.runner.callback import Callback
from onward.runner.data.dataset import SelectedRows
from onward.runner.evaluate_model import evaluate_model
from onward.runner.plan.preprocessing import read_preprocessing
from onward.runner.run import INTERRUPTED, Run
from onward.runner.train import train
from onward.runner.watch import Train, WatchSettings, watch
from onward.runner.watch_journal import WatchDecision

# Not repeated when a model is trained again: its paths, and what is part of the model already.
_OF_THE_FIRST_RUN = (
    "model", "data", "validation", "name", "runs", "new_head", "inputs", "standardize",
)  # fmt: skip


def watch_models(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    held_out: Any,
    settings: Mapping[str, Any],
    *,
    min_improvement: float = 0.0,
    replay: int = 0,
    interval: float = 5.0,
    once: bool = False,
    work: Path | None = None,
    make_callbacks: Callable[[], Sequence[Callback]] = list,
    on_decision: Callable[[WatchDecision], None] | None = None,
) -> list[WatchDecision]:
    """Fine-tune a model on each new file of a folder; replace it if the held-out data agrees.

    `model` was exported by `onward train`: its stored preprocessing reads every file. `settings`
    are those of `onward.train`. The runs are in `work/runs`; see `watch` for everything else.

        watch_models("runs/cnn-1/model.onnx", "incoming", "held_out.csv", {"epochs": 2}, once=True)
    """
    served = to_path(model)
    place = served.with_name(served.name + ".watch") if work is None else work
    if settings.get("quantization_aware"):
        raise OptionError(
            "a quantized model cannot be trained again\nwatch without quantization_aware"
        )
    check_preprocessing(served)
    again = {name: value for name, value in settings.items() if name not in _OF_THE_FIRST_RUN}
    first = evaluate_model(served, held_out, **again)
    if first.monitor not in first.numbers:
        raise OptionError(
            f"monitor: {first.monitor!r} is not measured on held-out data\n"
            f"choose one of {', '.join(first.numbers)}"
        )
    options = WatchSettings(
        monitor=first.monitor,
        higher_is_better=first.higher_is_better,
        min_improvement=min_improvement,
        replay=replay,
        interval=interval,
    )
    return watch(
        served,
        folder,
        train=fine_tune_with(
            {**again, "validation": held_out, "runs": str(place / "runs")}, make_callbacks
        ),
        evaluate=lambda path: evaluate_model(path, held_out, **again).numbers[first.monitor],
        options=options,
        work=place,
        once=once,
        on_decision=on_decision,
    )


def fine_tune_with(
    settings: Mapping[str, Any], make_callbacks: Callable[[], Sequence[Callback]] = list
) -> Train:
    """A function that fine-tunes a model with `onward.train` and these settings."""

    def fine_tune(model: Path, data: Sequence[Path]) -> Path:
        sources = [str(each) for each in data]
        finished = train(
            str(model),
            sources if len(sources) > 1 else sources[0],
            callbacks=make_callbacks(),
            **settings,
        )
        if finished.stopped == INTERRUPTED:  # the loop has caught Ctrl-C: it ends the watch, too
            raise KeyboardInterrupt
        return finished.model

    return fine_tune


def check_preprocessing(model: Path) -> None:
    """Refuse a model that does not say how columns become its inputs."""
    found = read_preprocessing(load(model, any_domain=True))
    if found is None:
        raise DataError(
            f"{model} does not say how its inputs are made from columns\n"
            "give a model that `onward train` has exported, or data to train it on first"
        )


class HeldOutRows(Callback):
    """Keeps the rows that a run evaluates on, as a dataset, to compare later models on."""

    def __init__(self) -> None:
        self.rows: SelectedRows | None = None

    def on_start(self, run: Run) -> None:
        held_out = run.plan.validation
        if held_out is not None:
            self.rows = SelectedRows(held_out.dataset, held_out.positions)
