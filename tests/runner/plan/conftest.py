"""A model that is trained as it is, where fine-tuning is not part of the installation yet."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import onnx_ir as ir

from onward.programs.export import export_model
from onward.runner.config import TrainConfig
from onward.runner.finetune.adapted_model import AdaptedModel
from onward.runner.finetune.head import new_head


def adapt_model(config: TrainConfig, model: ir.Model, calibration: Any) -> AdaptedModel:
    changed = new_head(model, config.new_head).model if config.new_head else model
    return AdaptedModel(changed, lambda tensors: export_model(changed, dict(tensors)))


if importlib.util.find_spec("onward.runner.finetune.adapt") is None:
    module = types.ModuleType("onward.runner.finetune.adapt")
    module.adapt_model = adapt_model  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
