"""The Memory option of a run, with the sizes of its batches."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from onward.programs.memory.memory_options import Memory
from onward.programs.memory.train_sizes import sizes_of_feeds
from onward.programs.training_options import TrainingOptions
from onward.runner.config import TrainConfig
from onward.runner.plan.training_plan import TrainingPlan


def with_memory(plan: TrainingPlan, config: TrainConfig) -> TrainingOptions:
    """The options of a run with its Memory, whose sizes are those of the first batch."""
    if config.memory_budget is None and config.memory_level is None:
        return plan.options
    memory = Memory(budget=config.memory_budget, level=config.memory_level, sizes=first_sizes(plan))
    return replace(plan.options, memory=memory)


def first_sizes(plan: TrainingPlan) -> dict[str, int]:
    """The sizes of dynamic dimensions in the first batch."""
    with contextlib.closing(plan.training.epoch(0)) as batches:
        first = next(iter(batches))
    inputs = {str(value.name): value for value in plan.adapted.model.graph.inputs}
    feeds = {name: feed for name, feed in first.feeds.items() if name in inputs}
    return sizes_of_feeds(list(inputs.values()), feeds)
