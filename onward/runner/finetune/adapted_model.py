"""AdaptedModel: the model that a run trains, and how its trained tensors become a clean model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.optimizers.groups import Group
from onward.runner.finetune.layer_depths import UnfreezingStage

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]  # parameters and statistics by name


@dataclass(frozen=True)
class LayerRate:
    """The learning rate of some parameters, as a share of the optimizer's own.

    It is a predicate for Group, which may match nothing: a stage of gradual unfreezing trains only
    some of the layers.
    """

    names: frozenset[str]
    share: float

    def __call__(self, name: str, shape: tuple[int, ...]) -> bool:
        return name in self.names


@dataclass(frozen=True)
class AdaptedModel:
    """A model with what fine-tuning added, the options that training it needs, and its export.

    `export(tensors)` returns the model for inference: adapters merged, weights quantized.
    `save_adapter(path, tensors)` writes only the adapters; None where there are none.
    `stages` are those of gradual unfreezing (unfreezing.py); a model without any has none.
    """

    model: ir.Model
    export: Callable[[Tensors], ir.Model]
    output: str | None = None  # the one that is trained; a new head may have given it another name
    trainable: Sequence[str] | None = None
    frozen: Sequence[str] = ()
    frozen_batch_norms: Sequence[str] = ()
    groups: Sequence[Group] = ()  # at the learning rate of the config
    save_adapter: Callable[[Path, Tensors], None] | None = None
    notes: Sequence[str] = field(default=())  # what was changed, for the lines before step 1
    stages: Sequence[UnfreezingStage] = ()
    layer_rates: Sequence[LayerRate] = ()

    def groups_at(self, lr: float) -> list[Group]:
        """The groups for another learning rate of the optimizer, as one that a search found."""
        return rate_groups(self.layer_rates, lr)


def rate_groups(rates: Sequence[LayerRate], lr: float) -> list[Group]:
    """One Group for each layer's rate; the optimizer's own is `lr`."""
    return [Group(parameters=each, lr=lr * each.share) for each in rates]
