"""Settings that are "auto": a batch size and a learning rate that are measured before the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.graph.files import Source
from onward.runner.asked_providers import asked_providers
from onward.runner.config import TrainConfig
from onward.runner.data.batches import Batches, Feeds
from onward.runner.finders.batch_size import BatchSearch, find_batch_size
from onward.runner.finders.learning_rate import RateSearch, find_learning_rate
from onward.runner.open_session import open_session, session_options
from onward.runner.plan.make_plan import make_plan
from onward.runner.plan.training_plan import TrainingPlan
from onward.sessions.training.training_program import compile_training

AUTO = "auto"
AUTOMATIC = ("batch_size", "learning_rate")
_BATCH_SIZE = 32  # while only the learning rate, or the batch size itself, is measured
_LARGEST = 4096


def resolve_automatic(
    config: TrainConfig,
    known: Mapping[str, Any],
    model: Source,
    data: Any = None,
    validation: Any = None,
) -> TrainConfig:
    """The config with numbers for "auto": those of `known`, or measured."""
    wanted = [name for name in AUTOMATIC if getattr(config, name) == AUTO]
    found = {name: known[name] for name in wanted if name in known}
    config = config.model_copy(update=found)
    if config.batch_size == AUTO:
        trial = config.model_copy(update={"batch_size": _BATCH_SIZE, "learning_rate": None})
        search = search_batch_size(trial, make_plan(trial, model, data, validation))
        config = config.model_copy(update={"batch_size": search.suggestion})
    if config.learning_rate == AUTO:
        trial = config.model_copy(update={"learning_rate": None})
        rates = search_learning_rate(trial, make_plan(trial, model, data, validation))
        config = config.model_copy(update={"learning_rate": float(f"{rates.suggestion:.2g}")})
    return config


def search_batch_size(config: TrainConfig, plan: TrainingPlan) -> BatchSearch:
    """The size that trains most rows per second within the memory."""
    program = compile_training(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    rows = next(iter(_feeds(plan.training)))

    def make_batch(size: int) -> Feeds:
        return {name: np.resize(feed, (size, *feed.shape[1:])) for name, feed in rows.items()}

    return find_batch_size(
        program,
        make_batch,
        largest=min(_LARGEST, max(plan.sizes["training rows"], 1)),
        sess_options=session_options(config),
        providers=asked_providers(config),
    )


def search_learning_rate(config: TrainConfig, plan: TrainingPlan) -> RateSearch:
    """A range test on the run's own model and batches."""
    still = replace(plan, options=replace(plan.options, schedule=None))
    return find_learning_rate(lambda: open_session(still, config), _Epochs(plan.training))


class _Epochs:
    """The feeds of all epochs, one after another."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self._next = batches, 0

    def __iter__(self) -> Iterator[Feeds]:
        self._next += 1
        return _feeds(self._batches, self._next - 1)


def _feeds(batches: Batches, epoch: int = 0) -> Iterator[Feeds]:
    made = batches.epoch(epoch)
    try:
        for batch in made:
            yield batch.feeds
    finally:
        made.close()
