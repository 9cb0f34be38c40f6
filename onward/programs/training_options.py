"""TrainingOptions: the settings of training, in addition to the model, loss and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from onward.errors import OptionError
from onward.graph.operator_table import AbstractOpTable
from onward.message_text import suggest_names
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import Schedule
from onward.programs.memory.memory_options import Memory
from onward.programs.precision.precision import FP16, Precision, to_precision
from onward.programs.sparsity.sparsity_options import Sparsity, sparsity_option
from onward.settings import (
    above,
    check_fields,
    explain_frozen,
    explain_keywords,
    float32_above_0,
    instance_of,
    integer,
    list_of,
    optional,
    setting_error,
    true_or_false,
)

Names = Sequence[str]  # names, or patterns as in "encoder.*"


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a model is trained.

    Attributes:
        trainable: names or patterns of what is trained; None: the parameters (docs/training.md)
        frozen: names or patterns, among those, of what stays as it is
        groups: parameters with settings of their own, a list of Group
        tied: groups of names that are one parameter each; None: as the model shows
        frozen_batch_norms: BatchNormalization nodes that use and keep their statistics
        unbiased_variance: running variances as torch computes them
        state: tensors that a step replaces: {name: the value that it becomes}
        accumulate: micro-batches whose gradients are averaged before an update
        clip_norm: the largest norm of all gradients together; None: not clipped
        clip_value: the largest absolute value of an element of a gradient; None: not clipped
        precision: "bf16", "fp16" or a Precision: the forward in 16 bits; None: in the model's types
        loss_scale: for float16, keeps small gradients: a number or a DynamicLossScale; None: 1, or
            a DynamicLossScale where precision is "fp16"
        schedule: of the learning rate, such as Cosine(steps=1000); None: constant
        average: keep an average of the weights, such as EMA(decay=0.999); None: none is kept
        skip_nonfinite: no update from gradients that are infinite or not a number
        sparsity: leave out padding and ignored labels: "off", "auto" or a Sparsity
        memory: recompute, offload or quantise activations, such as Memory(budget="50%");
            None: all that the backward pass reads is kept
        outputs: values that a step returns with the loss; None: the model's outputs
        seed: of dropout and other randomness
        rules: gradient rules, such as GRADIENTS | mine; None: GRADIENTS

    >>> TrainingOptions(accumulate=4, clip_norm=1.0).accumulate
    4
    """

    # what is trained
    trainable: Names | None = None
    frozen: Names = ()
    groups: Sequence[Group] = ()
    tied: Sequence[Names] | None = None
    frozen_batch_norms: Names = ()
    unbiased_variance: bool = False
    state: Mapping[str, str] = field(default_factory=dict)
    # the step
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str | Precision | None = None
    loss_scale: float | DynamicLossScale | None = None
    schedule: Schedule | None = None
    average: EMA | None = None
    skip_nonfinite: bool = True
    sparsity: str | Sparsity = "off"
    memory: Memory | None = None
    # what comes back, and what is random
    outputs: Names | None = None
    seed: int = 0
    rules: Any = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            trainable=optional(_NAMES),
            frozen=_NAMES,
            groups=list_of(Group, "a list of Group", "[Group(parameters='*.bias', lr=0.1)]"),
            tied=optional(_tied),
            frozen_batch_norms=_NAMES,
            unbiased_variance=true_or_false,
            state=_state,
            accumulate=integer(1),
            clip_norm=optional(above(0.0)),
            clip_value=optional(above(0.0)),
            precision=to_precision,
            schedule=optional(instance_of(Schedule, "Cosine(steps=1000)", "a schedule")),
            average=optional(instance_of(EMA, "EMA(decay=0.999)", "an EMA")),
            skip_nonfinite=true_or_false,
            sparsity=sparsity_option,
            memory=optional(instance_of(Memory, "Memory(budget='50%')", "a Memory")),
            outputs=optional(_NAMES),
            seed=integer(0),
            rules=optional(
                instance_of(AbstractOpTable, "GRADIENTS | mine", "a table of gradient rules")
            ),
        )
        if not isinstance(self.loss_scale, DynamicLossScale):
            check_fields(self, loss_scale=optional(float32_above_0))
        low = self.precision_settings
        if self.loss_scale is None and low is not None and low.dtype == FP16:
            object.__setattr__(self, "loss_scale", DynamicLossScale())

    @property
    def precision_settings(self) -> Precision | None:
        """The settings of mixed precision; None: the model's types stay."""
        return self.precision if isinstance(self.precision, Precision) else None

    @classmethod
    def of(cls, given: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
        """Options from an argument: TrainingOptions, a dictionary, or None."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise OptionError(
                f"options must be TrainingOptions, not {type(given).__name__}\n"
                "give them, or a dictionary of the same names"
            )
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise OptionError(f"there is no option {name!r}\n{suggest_names(name, known)}")
        return cls(**given)


_NAMES = list_of(str, "a list of names", "['encoder.*']")


def _state(name: str, value: Any) -> Mapping[str, str]:
    """A dictionary from names to names."""
    if not isinstance(value, Mapping) or not _all_names([*value, *value.values()]):
        hint = "such as {'count': 'new_count'}"
        raise setting_error(name, "a dictionary of names", value, hint)
    return value


def _tied(name: str, value: Any) -> tuple[tuple[str, ...], ...]:
    """Groups of two names or more."""
    listed = isinstance(value, Iterable) and not isinstance(value, (str, Mapping))
    groups = [() if isinstance(group, str) else tuple(group) for group in value] if listed else [()]
    if any(len(group) < 2 or not _all_names(group) for group in groups):
        hint = "such as [['embedding.weight', 'head.weight']]"
        raise setting_error(name, "a list of groups of names", value, hint)
    return tuple(groups)


def _all_names(listed: Iterable[object]) -> bool:
    return all(isinstance(each, str) for each in listed)
