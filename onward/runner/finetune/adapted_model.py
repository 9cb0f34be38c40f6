"""AdaptedModel: the model that a run trains, and how its trained tensors become a clean model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.optimizers.groups import Group

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]  # parameters and statistics by name


@dataclass(frozen=True)
class AdaptedModel:
    """A model with what fine-tuning added, the options that training it needs, and its export.

    `export(tensors)` returns the model for inference: adapters merged, weights quantized.
    `save_adapter(path, tensors)` writes the adapters alone; None where there are none.
    """

    model: ir.Model
    export: Callable[[Tensors], ir.Model]
    trainable: Sequence[str] | None = None
    frozen: Sequence[str] = ()
    frozen_batch_norms: Sequence[str] = ()
    groups: Sequence[Group] = ()
    save_adapter: Callable[[Path, Tensors], None] | None = None
    notes: Sequence[str] = field(default=())  # what was changed, for the lines before step 1
