"""The plan of a Trainer's run: how many updates it has, and when it logs, evaluates and saves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.pytorch.trainer.arguments import BEST, TrainingArguments
from onward.pytorch.trainer.batches import Batch
from onward.pytorch.trainer.trainer_state import TrainerState

_EVENTS = ("logging", "eval", "save")


def updates_per_epoch(args: TrainingArguments, batches: int | None) -> int:
    """The updates of an epoch; of a dataset of unknown length, those of the whole run."""
    if batches is None:
        if args.max_steps <= 0:
            raise OptionError(
                "train_dataset has no __len__, so the steps of an epoch are not known\n"
                "set args.max_steps"
            )
        return args.max_steps
    updates = math.ceil(batches / args.gradient_accumulation_steps)
    if not updates:
        raise OptionError(
            "train_dataset has fewer rows than one batch\n"
            "give more rows, or a smaller per_device_train_batch_size"
        )
    return updates


def plan_run(args: TrainingArguments, per_epoch: int) -> TrainerState:
    """The state before the first step: how many there are, and how often each event happens."""
    state = TrainerState()
    epochs = math.ceil(args.num_train_epochs * per_epoch)
    state.max_steps = args.max_steps if args.max_steps > 0 else epochs
    state.num_train_epochs = math.ceil(state.max_steps / per_epoch)
    state.train_batch_size = args.per_device_train_batch_size
    for name in _EVENTS:
        setattr(state, f"{name}_steps", args.interval(name, state.max_steps))
    return state


def group_updates(batches: Iterator[Batch], args: TrainingArguments) -> Iterator[list[Batch]]:
    """The batches of each update; those that are left at an epoch's end make one, too."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == args.gradient_accumulation_steps:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def due_after_step(args: TrainingArguments, state: TrainerState) -> set[str]:
    """What the arguments ask for after this step: "logging", "eval", "save"."""
    counted = [name for name in _EVENTS if getattr(args, f"{name}_strategy") == "steps"]
    due = {name for name in counted if state.global_step % getattr(state, f"{name}_steps") == 0}
    if args.logging_first_step and state.global_step == 1:
        due.add("logging")
    if "save" in counted and state.global_step >= state.max_steps:
        due.add("save")
    return due


def note_best(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, Any]) -> bool:
    """Note an evaluation in the state if it is the best so far; whether it must be saved."""
    if args.metric_for_best_model is None:
        return False
    name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    if name not in metrics:
        raise OptionError(
            f"no evaluation has {name!r}, which args.metric_for_best_model asks for\n"
            f"{suggest_names(name, metrics, 'there are')}"
        )
    sign = 1.0 if args.greater_is_better else -1.0
    found = float(metrics[name])
    best = -math.inf if state.best_metric is None else sign * state.best_metric
    if not sign * found > best:  # NaN is never the best
        return False
    state.best_metric = found
    if args.save_strategy != "no":
        state.best_global_step = state.global_step
    return bool(args.save_strategy == BEST)
