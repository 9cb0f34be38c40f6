"""The optimizer and the schedule that a Trainer's settings describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.optimizers.schedules import Constant, Cosine, Linear, Polynomial, Schedule, WarmUp
from onward.pytorch.trainer.arguments import TrainingArguments

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
_OPTIMIZERS = (*_ADAMW, "sgd")
# parameters without weight decay, by their names: as transformers has it
_UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_LR_END = 1e-7  # of a polynomial schedule


def make_optimizer(model: nn.Module, arguments: TrainingArguments) -> torch.optim.Optimizer:
    """The optimizer of transformers.Trainer: biases and norms are not decayed."""
    norms = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters(recurse=False)
    }
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    decayed = [n for n in named if n not in norms and not _UNDECAYED.search(n.lower())]
    rest = [n for n in named if n not in decayed]
    groups = [
        {"params": [named[n] for n in names], "weight_decay": decay}
        for names, decay in ((decayed, arguments.weight_decay), (rest, 0.0))
        if names
    ]
    if not groups:
        raise OptionError(
            "the model has no parameter to train\ncall requires_grad_() on some of them"
        )
    if arguments.optim == "sgd":
        return torch.optim.SGD(groups, lr=arguments.learning_rate)
    if arguments.optim in _ADAMW:
        betas = arguments.adam_beta1, arguments.adam_beta2
        return torch.optim.AdamW(
            groups, lr=arguments.learning_rate, betas=betas, eps=arguments.adam_epsilon
        )
    raise OptionError(
        f"args.optim is {arguments.optim!r}, which onward.pytorch.Trainer does not have\n"
        f"{suggest_names(arguments.optim, _OPTIMIZERS)}, or give optimizers=(optimizer, None)"
    )


def make_schedule(arguments: TrainingArguments, total: int) -> Schedule:
    """The learning rate over all updates: a warm-up from 0, then the schedule of this name."""
    kind, kwargs = arguments.lr_scheduler_type, dict(arguments.lr_scheduler_kwargs or {})
    warm = 0 if kind == "constant" else arguments.warmup(total)
    rest = max(total - warm, 1)
    lr = arguments.learning_rate

    def polynomial(lr_end: float = _LR_END, power: float = 1.0) -> Schedule:
        return Polynomial(steps=rest, power=power, end_factor=lr_end / lr)

    def cosine_with_min_lr(min_lr: float | None = None, min_lr_rate: float = 0.0) -> Schedule:
        return Cosine(steps=rest, minimum=lr * min_lr_rate if min_lr is None else min_lr)

    makers: Mapping[str, Callable[..., Schedule]] = {
        "linear": lambda: Linear(steps=rest),
        "cosine": lambda: Cosine(steps=rest),
        "cosine_with_min_lr": cosine_with_min_lr,
        "polynomial": polynomial,
        "constant": Constant,
        "constant_with_warmup": Constant,
    }
    if kind not in makers:
        raise OptionError(
            f"args.lr_scheduler_type is {kind!r}, which onward.pytorch.Trainer does not have\n"
            f"{suggest_names(kind, makers)}"
        )
    try:
        schedule = makers[kind](**kwargs)
    except TypeError:
        raise OptionError(
            f"args.lr_scheduler_kwargs are {kwargs}, which {kind!r} does not take\nleave them out"
        ) from None
    return WarmUp(steps=warm, schedule=schedule) if warm else schedule


def describe_optimizers(given: Any) -> torch.optim.Optimizer | None:
    """The optimizer of the argument `optimizers`; a schedule of torch is refused."""
    optimizer, schedule = given
    if schedule is not None:
        raise OptionError(
            "optimizers has a schedule of torch, which a captured step cannot call\n"
            "give optimizers=(optimizer, None), and choose args.lr_scheduler_type"
        )
    return None if optimizer is None else _checked(optimizer)


def _checked(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(
            f"optimizers[0] must be an optimizer of torch, not {type(optimizer).__name__}\n"
            "for example torch.optim.AdamW(model.parameters())"
        )
    return optimizer
