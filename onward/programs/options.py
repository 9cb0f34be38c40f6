"""TrainingOptions: every setting of a training session beside its model, loss and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from onward.errors import OptionError
from onward.graph.operator_table import OpTable
from onward.names import suggest_names
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import Schedule
from onward.optimizers.setting_checks import check_above, check_count, check_flag, check_scale
from onward.settings import explain_frozen, explain_keywords

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
        loss_scale: for float16, keeps small gradients: a number or a DynamicLossScale; None: 1
        schedule: of the learning rate, such as Cosine(steps=1000); None: constant
        average: keep an average of the weights, such as EMA(decay=0.999); None: none is kept
        skip_nonfinite: no update from gradients that are infinite or not a number
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
    loss_scale: float | DynamicLossScale | None = None
    schedule: Schedule | None = None
    average: EMA | None = None
    skip_nonfinite: bool = True
    # what comes back, and what is random
    outputs: Names | None = None
    seed: int = 0
    rules: Any = None

    def __post_init__(self) -> None:
        for name in ("trainable", "frozen", "frozen_batch_norms", "outputs"):
            if getattr(self, name) is not None or name not in ("trainable", "outputs"):
                self._check_list(name, str, "a list of names", "['encoder.*']")
        self._check_list("groups", Group, "a list of Group", "[Group(parameters='*.bias', lr=0.1)]")
        if not isinstance(self.state, Mapping) or not _all(str, self.state, self.state.values()):
            raise _refusal("state", "a dictionary of names", self.state, "{'count': 'new_count'}")
        self._check_tied()
        check_count(self, "accumulate")
        check_count(self, "seed", low=0)
        for name in ("unbiased_variance", "skip_nonfinite"):
            check_flag(self, name)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_above(self, name, 0.0)
        if self.loss_scale is not None and not isinstance(self.loss_scale, DynamicLossScale):
            check_scale(self, "loss_scale")
        self._check_kind("schedule", Schedule, "a schedule", "Cosine(steps=1000)")
        self._check_kind("average", EMA, "an EMA", "EMA(decay=0.999)")
        self._check_kind("rules", OpTable, "a table of gradient rules", "GRADIENTS | mine")

    def _check_list(self, name: str, kind: type, law: str, example: str) -> None:
        """A list, or anything that can be gone through, of this kind; it becomes a tuple."""
        given = getattr(self, name)
        if isinstance(given, (str, Group)):
            raise OptionError(f"{name} is {law}, not one\nwrite [{given!r}]")
        if not isinstance(given, Iterable):
            raise _refusal(name, law, given, example)
        listed = tuple(given)
        if not _all(kind, listed):
            raise _refusal(name, law, given, example)
        object.__setattr__(self, name, listed)

    def _check_tied(self) -> None:
        """Groups of two names or more; they become tuples."""
        if self.tied is None:
            return
        law, example = "a list of groups of names", "[['embedding.weight', 'head.weight']]"
        given = self.tied
        if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
            raise _refusal("tied", law, given, example)
        groups = [group if isinstance(group, str) else tuple(group) for group in given]
        if any(isinstance(group, str) or len(group) < 2 for group in groups):
            raise _refusal("tied", law, given, example)
        if not _all(str, *groups):
            raise _refusal("tied", law, given, example)
        object.__setattr__(self, "tied", tuple(groups))

    def _check_kind(self, name: str, kind: type, law: str, example: str) -> None:
        given = getattr(self, name)
        if given is not None and not isinstance(given, kind):
            raise _refusal(name, law, given, example)

    @classmethod
    def of(cls, given: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
        """Options from what a user gave: these, a mapping, or nothing."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise OptionError(
                f"options are TrainingOptions, not {type(given).__name__}\n"
                "give them, or a dictionary of the same names"
            )
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise OptionError(f"there is no option {name!r}\n{suggest_names(name, known)}")
        return cls(**given)


def _all(kind: type, *groups: Iterable[object]) -> bool:
    return all(isinstance(each, kind) for group in groups for each in group)


def _refusal(name: str, law: str, given: object, example: str) -> OptionError:
    return OptionError(f"TrainingOptions.{name} is {law}, not {given!r}\nsuch as {example}")
