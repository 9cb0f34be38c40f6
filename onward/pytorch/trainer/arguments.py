"""TrainingArguments: the settings of a Trainer, under the names that Hugging Face's have."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any

from onward.errors import OptionError
from onward.settings import above, check_fields, choice, explain_keywords, integer, number

log = logging.getLogger("onward")

STRATEGIES = ("no", "steps", "epoch")
BEST = "best"  # save_strategy: a checkpoint whenever the metric is better than before
# Settings of speed, of what is printed and of many processes: results do not depend on them.
_OF_NO_EFFECT = """
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor disable_tqdm
    dataloader_multiprocessing_context dataloader_in_order log_level log_level_replica run_name
    log_on_each_node save_on_each_node local_rank ddp_timeout
    skip_memory_metrics use_cache eval_accumulation_steps prediction_loss_only project
    eval_do_concat_batches average_tokens_across_devices logging_nan_inf_filter tf32
    torch_empty_cache_steps logging_dir overwrite_output_dir report_to
"""
_WITHOUT_EFFECT = frozenset(_OF_NO_EFFECT.split())
_OF_SCRIPTS = ("do_train", "do_eval", "do_predict")  # transformers.Trainer does not read them


@explain_keywords
@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    """The settings of a Trainer.

    The names, meanings and defaults are those of transformers.TrainingArguments, whose objects a
    Trainer takes as well.

    >>> TrainingArguments(output_dir="out", max_steps=100, bf16=True).learning_rate
    5e-05
    """

    output_dir: str | os.PathLike[str] = "trainer_output"
    # batches
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    dataloader_drop_last: bool = False
    dataloader_num_workers: int = 0
    remove_unused_columns: bool = True
    label_names: Sequence[str] | None = None
    seed: int = 42
    data_seed: int | None = None
    # learning
    num_train_epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    optim: str = "adamw_torch"
    max_grad_norm: float | None = 1.0
    label_smoothing_factor: float = 0.0
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: Mapping[str, Any] | None = None
    warmup_steps: float = 0
    warmup_ratio: float = 0.0
    # precision and device
    bf16: bool = False
    fp16: bool = False
    use_cpu: bool = False
    # logging, evaluation, checkpoints
    logging_strategy: str = "steps"
    logging_steps: float = 500
    logging_first_step: bool = False
    eval_strategy: str = "no"
    eval_steps: float | None = None
    eval_on_start: bool = False
    save_strategy: str = "steps"
    save_steps: float = 500
    save_total_limit: int | None = None
    save_only_model: bool = False
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    resume_from_checkpoint: str | bool | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            per_device_train_batch_size=integer(1),
            per_device_eval_batch_size=integer(1),
            gradient_accumulation_steps=integer(1),
            dataloader_num_workers=integer(0),
            num_train_epochs=above(0.0),
            max_steps=integer(-1),
            learning_rate=above(0.0),
            weight_decay=number(),
            warmup_steps=number(),
            warmup_ratio=number(high=1.0),
            logging_strategy=choice(*STRATEGIES),
            eval_strategy=choice(*STRATEGIES),
            save_strategy=choice(*STRATEGIES, BEST),
            label_smoothing_factor=number(high=1.0),
        )
        if self.bf16 and self.fp16:
            raise OptionError("TrainingArguments has both bf16 and fp16\nchoose one of them")
        self._choose_metric()
        if self.load_best_model_at_end and self.save_strategy != BEST:
            self._check_saves()

    def _choose_metric(self) -> None:
        """The metric of the best model is the loss, and less of a loss is better."""
        metric = self.metric_for_best_model or ("loss" if self.load_best_model_at_end else None)
        if metric is None and self.save_strategy == BEST:
            raise OptionError(
                "save_strategy='best' needs metric_for_best_model\nname one, such as 'loss'"
            )
        object.__setattr__(self, "metric_for_best_model", metric)
        if self.greater_is_better is None and metric is not None:
            object.__setattr__(self, "greater_is_better", not metric.endswith("loss"))

    def _check_saves(self) -> None:
        """Only a model that was evaluated and saved can be the best one that is loaded."""
        if self.eval_strategy != self.save_strategy:
            raise OptionError(
                f"load_best_model_at_end needs save_strategy ({self.save_strategy!r}) to be "
                f"eval_strategy ({self.eval_strategy!r})\nmake them equal, or save_strategy='best'"
            )
        evaluates = self.logging_steps if self.eval_steps is None else self.eval_steps
        share = self.save_steps / evaluates
        is_multiple = abs(share - round(share)) < 1e-6 and round(share) > 0
        if self.save_strategy == "steps" and not is_multiple:
            raise OptionError(
                f"load_best_model_at_end needs save_steps ({self.save_steps}) to be a multiple of "
                f"eval_steps ({evaluates})\nso that every model that is saved is evaluated"
            )

    @property
    def precision(self) -> str | None:
        """TrainingOptions.precision for these settings."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else None

    def interval(self, name: str, total: int) -> int:
        """Every how many steps to log, evaluate or save; a share below 1 is of all steps."""
        every = getattr(self, f"{name}_steps")
        every = self.logging_steps if every is None else every
        return max(math.ceil(every * total) if every < 1 else int(every), 1)

    def warmup(self, total: int) -> int:
        """The updates during which the learning rate rises."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(total * (self.warmup_steps or self.warmup_ratio))


def read_arguments(given: Any) -> TrainingArguments:
    """The settings of an argument: ours, transformers', or a dictionary; None: the defaults.

    Settings of transformers that a Trainer has not are refused where they are not the default.
    """
    if given is None or isinstance(given, TrainingArguments):
        return given or TrainingArguments()
    if isinstance(given, Mapping):
        return TrainingArguments(**given)
    if not hasattr(given, "per_device_train_batch_size") or not hasattr(type(given), "__mro__"):
        raise OptionError(
            f"args must be TrainingArguments, not {type(given).__name__}\n"
            "take onward.pytorch.TrainingArguments, or those of transformers"
        )
    ours = [each.name for each in fields(TrainingArguments)]
    _check_others(given, {*ours})
    found = {name: _plain(getattr(given, name)) for name in ours if hasattr(given, name)}
    found["warmup_ratio"] = found.get("warmup_ratio") or 0.0
    return TrainingArguments(**found)


def _check_others(given: Any, ours: set[str]) -> None:
    """Refuse settings that a Trainer has not, or warn of them, where they are not the default."""
    default = type(given)(output_dir=given.output_dir, use_cpu=given.use_cpu)
    unused = []
    for each in fields(given):
        name, value = each.name, getattr(given, each.name)
        if name in ours or name in _OF_SCRIPTS or _is_same(value, getattr(default, name)):
            continue
        if each.default is not MISSING and _is_same(value, each.default):
            continue
        if name not in _WITHOUT_EFFECT:
            raise OptionError(
                f"args.{name} is {_plain(value)!r}, which onward.pytorch.Trainer does not have\n"
                "leave it out, or use transformers.Trainer with onward.Module"
            )
        unused.append(name)
    if unused:
        log.warning("Trainer: these settings have no effect: %s", ", ".join(unused))


def _is_same(value: Any, other: Any) -> bool:
    return value is other or bool(value == other) or (not value and not other)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
