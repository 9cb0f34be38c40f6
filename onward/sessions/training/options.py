"""TrainingOptions: every setting of a training session beside its model, loss and optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onward.errors import OptionError

if TYPE_CHECKING:
    from onward.optimizers.average import EMA
    from onward.optimizers.groups import Group
    from onward.optimizers.scaling import DynamicLossScale
    from onward.optimizers.schedules import Schedule

Names = Sequence[str]  # names, or patterns as in "encoder.*"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a model is trained.

    >>> TrainingOptions(accumulate=4, clip_norm=1.0).accumulate
    4
    """

    # what is trained
    trainable: Names | None = None  # None: every float weight of more than one element
    frozen: Names = ()  # of those, the ones that stay as they are
    groups: Sequence[Group] = ()  # parameters with settings of their own
    frozen_batch_norms: Names = ()  # BatchNormalization nodes that use and keep their statistics
    unbiased_variance: bool = False  # running variances as torch computes them
    state: Mapping[str, str] = field(default_factory=dict)  # tensors -> the values they become
    # the step
    accumulate: int = 1  # micro-batches whose gradients are averaged before an update
    clip_norm: float | None = None  # the most that all gradients together may measure
    clip_value: float | None = None  # the most that each element of a gradient may be
    loss_scale: float | DynamicLossScale | None = None  # for float16: keeps small gradients
    schedule: Schedule | None = None  # of the learning rate; None: constant
    average: EMA | None = None  # keep an average of the weights
    skip_nonfinite: bool = True  # no update from gradients that are infinite or not a number
    # what comes back, and what is random
    outputs: Names | None = None  # beside the loss; None: the model's outputs
    seed: int = 0
    rules: Any = None  # gradient rules; None: GRADIENTS

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise OptionError(f"accumulate is a number of micro-batches, not {self.accumulate}")
        for name in ("clip_norm", "clip_value"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise OptionError(f"{name} is a positive number, not {limit}")
        if isinstance(self.loss_scale, (int, float)) and not self.loss_scale > 0:
            raise OptionError(f"loss_scale is a positive number, not {self.loss_scale}")
        for name in ("trainable", "frozen", "frozen_batch_norms", "outputs"):
            if isinstance(getattr(self, name), str):
                raise OptionError(f"{name} is a list of names, not one\nwrite [{name!r}]")

    @classmethod
    def of(cls, given: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
        """Options from what a user gave: these, a mapping, or nothing."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            try:
                return cls(**given)
            except TypeError as error:
                raise OptionError(f"TrainingOptions: {error}") from None
        raise OptionError(f"options are TrainingOptions, not {type(given).__name__}")
