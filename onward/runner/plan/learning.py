"""The optimizer, the schedule and the options of training, from the config's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from onward.errors import OptionError
from onward.optimizers.catalogue import OPTIMIZERS
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.schedules import Constant, Cosine, Linear, OneCycle, Schedule, WarmUp
from onward.programs.training_options import TrainingOptions
from onward.runner.asked_providers import asked_providers
from onward.runner.config import TrainConfig
from onward.runner.finetune.adapted_model import AdaptedModel
from onward.runner.plan.training_plan import ChosenSetting
from onward.runner.precision import choose_precision

_ONE_CYCLE_RISE = 0.3  # the share of steps, as torch's OneCycleLR has it


def check_resolved(config: TrainConfig) -> int:
    """The batch size; `auto` must have been replaced by a number before."""
    for name in ("batch_size", "learning_rate"):
        if getattr(config, name) == "auto":
            raise OptionError(
                f"{name} is 'auto', which a plan cannot measure\n"
                "give a number; onward.train finds one first"
            )
    return int(config.batch_size)


def make_optimizer(config: TrainConfig) -> tuple[Optimizer, list[ChosenSetting]]:
    """The optimizer of a config, with its own learning rate where none is given."""
    kind = next(each for name, each in OPTIMIZERS.items() if name.lower() == config.optimizer)
    known = {each.name for each in fields(kind)}
    settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.state_dtype != "fp32":
        settings["state_dtype"] = config.state_dtype
    settings = {name: value for name, value in settings.items() if value is not None}
    for name in settings:
        if name not in known:
            raise OptionError(f"{config.optimizer} has no {name}\nleave {name} out")
    optimizer = kind(**settings)
    if config.learning_rate is not None:
        return optimizer, []
    return optimizer, [
        ChosenSetting("learning rate", f"{optimizer.lr:g}", f"the usual one of {config.optimizer}")
    ]


def count_steps(config: TrainConfig, batches: int) -> int:
    """The updates of a run: those of its epochs, and at most max_steps."""
    accumulated, made = config.gradient_accumulation_steps, config.epochs * batches
    if accumulated > made:
        raise OptionError(
            f"gradient_accumulation_steps is {accumulated}, and the run has {made} batches: they "
            "do not fill one step\ngive a smaller number, or more epochs"
        )
    steps = made // accumulated
    return steps if config.max_steps is None else min(steps, config.max_steps)


def make_schedule(config: TrainConfig, steps: int) -> Schedule:
    """The learning rate over the updates of a run: up during the warm-up, then down.

    >>> from onward.runner.config import make_config
    >>> make_schedule(make_config(schedule="linear", warmup=0.1), 100).schedule
    Linear(steps=90, start_factor=1.0, end_factor=0.0)
    """
    if config.schedule == "one_cycle":
        return OneCycle(steps=steps, pct_start=config.warmup or _ONE_CYCLE_RISE)
    warm = round(steps * config.warmup)
    rest = max(steps - warm, 1)
    schedule: Schedule = Constant()
    if config.schedule == "linear":
        schedule = Linear(steps=rest)
    if config.schedule == "cosine":
        schedule = Cosine(steps=rest)
    # the first update has a rate above 0: a batch would be wasted otherwise
    return WarmUp(steps=warm, schedule=schedule, start_factor=1 / (warm + 1)) if warm else schedule


def explain_precision(config: TrainConfig) -> list[ChosenSetting]:
    """The type of mixed precision, where the config asks for any."""
    found = choose_precision(config.mixed_precision, asked_providers(config))
    if config.mixed_precision == "none":
        return []
    if config.mixed_precision == "auto":
        return [ChosenSetting("precision", found or "float32", "what the provider is faster with")]
    return [ChosenSetting("precision", str(found), "as given")]


def make_groups(
    config: TrainConfig, adapted: AdaptedModel, optimizer: Optimizer
) -> Sequence[Group]:
    """The groups of a model; with Muon, AdamW updates what is no matrix, at the same rate."""
    if not isinstance(optimizer, Muon):
        return adapted.groups
    if adapted.groups:
        raise OptionError("layer_decay does not go with muon\nleave one of them out")
    usual = config.model_copy(update={"optimizer": "adamw", "learning_rate": optimizer.lr})
    return [Group(parameters=_is_no_matrix, optimizer=make_optimizer(usual)[0])]


def _is_no_matrix(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) != 2


def make_options(
    config: TrainConfig, adapted: AdaptedModel, optimizer: Optimizer, steps: int, output: str
) -> TrainingOptions:
    """The options of the session; a step returns the output that metrics compare."""
    return TrainingOptions(
        trainable=adapted.trainable,
        frozen=adapted.frozen,
        groups=make_groups(config, adapted, optimizer),
        frozen_batch_norms=adapted.frozen_batch_norms,
        accumulate=config.gradient_accumulation_steps,
        clip_norm=config.max_grad_norm,
        schedule=make_schedule(config, steps),
        average=None if config.ema is None else EMA(decay=config.ema),
        outputs=[output],
        seed=config.seed,
    )
