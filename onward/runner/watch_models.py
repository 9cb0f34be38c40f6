"""Train and evaluate the models of `watch` by the runner's own means."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onward.errors import DataError
from onward.runner.data.open_data import open_data
from onward.runner.metrics.make_metric import make_metric
from onward.runner.watch import Evaluate, Train, WatchSettings
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]

_ROWS = 256  # that are evaluated at once


class StoredPreprocessing(Protocol):
    """What is stored with a model: how its feeds and its target are made of columns."""

    @property
    def target(self) -> Any: ...

    @property
    def output(self) -> str | None: ...

    def feeds(self, columns: Mapping[str, Array]) -> dict[str, Array]: ...


def watch_settings(metric: str, **changes: Any) -> WatchSettings:
    """The settings of a watch that compares models by a metric.

    >>> watch_settings("accuracy", min_improvement=0.01).higher_is_better
    True
    """
    better = make_metric(metric).higher_is_better
    return WatchSettings(monitor=metric, higher_is_better=better, **changes)


def fine_tune_with(train: Callable[..., Any], **settings: Any) -> Train:
    """A function that fine-tunes with `onward.train` and these settings."""

    def fine_tune(model: Path, data: Sequence[Path]) -> Path:
        sources = [str(each) for each in data]
        finished = train(str(model), sources if len(sources) > 1 else sources[0], **settings)
        return Path(finished.model)

    return fine_tune


def evaluate_on(
    held_out: Any,
    metric: str,
    read_preprocessing: Callable[[Path], StoredPreprocessing | None],
) -> Evaluate:
    """A function that computes a metric of a model on held-out data, by its own preprocessing."""
    data = open_data(held_out)

    def evaluate(model: Path) -> float:
        found = read_preprocessing(model)
        if found is None or found.target is None:
            raise DataError(
                f"{os.fspath(model)} does not say how its inputs are made from columns\n"
                "give a model that `onward train` has exported"
            )
        computed = make_metric(metric)
        with InferenceSession(model, providers=["CPUExecutionProvider"]) as session:
            output = found.output or session.get_outputs()[0].name
            for start in range(0, len(data), _ROWS):
                rows = np.arange(start, min(start + _ROWS, len(data)))
                feeds = found.feeds(data.read(rows))
                target = feeds.pop(found.target.feed)
                [answers] = session.run([output], feeds)
                computed.update(answers, target)
        return computed.result()

    return evaluate
