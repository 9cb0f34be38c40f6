"""Mixed precision of a run: the type for a setting and a provider, and models changed to it.

    options = TrainingOptions(precision=choose_precision("auto", ["cuda"]))

`to_mixed_precision` changes a model itself, for a session that is given the result:

    half = to_mixed_precision(model, "bfloat16")
    session = TrainingSession(half, loss, optimizer, providers=["torch"])
    trained = export_model(model, {**session.parameters, **session.statistics})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.files import least_ir_version
from onward.graph.shapes.infer import infer_shapes
from onward.measure.tuning.tune_training import torch_devices
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.passes.fold import as_graph_inputs
from onward.programs.precision.lower_precision import lower_training
from onward.programs.precision.precision import LONG_NAMES, Precision
from onward.providers.choose import INDUCTOR, TORCH, Asked, available, full_name, mentions_auto
from onward.runner.finetune.linear_layers import prepare_layers
from onward.settings import choice

TYPES = tuple(LONG_NAMES.values())
_FLOAT = ir.DataType.FLOAT
_BATCH_NORM = "BatchNormalization"
_LEAST_OPSET = 13  # of MatMul and Gemm in bfloat16
_GPUS = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")


def to_mixed_precision(model: ir.Model, dtype: str) -> ir.Model:
    """A copy of a model in mixed precision, as TrainingOptions.precision changes one for training.

    The weights stay float32 parameters, which are cast in the graph. Names do not change, so that
    the original model takes the trained tensors.

    Args:
        model: the model, which does not change
        dtype: "bfloat16" or "float16"

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> w = op.initializer("w", np.ones((4, 2), np.float32))
    >>> model = op.model(y=op.MatMul(op.input("x", "float32", ("batch", 4)), w))
    >>> [node.op_type for node in to_mixed_precision(model, "bfloat16").graph]
    ['Cast', 'Cast', 'MatMul', 'Cast']
    """
    choice(*TYPES)("dtype", dtype)
    copy = prepare_layers(model)
    if copy.opset_imports[""] < _LEAST_OPSET:
        raise UnsupportedModel(
            f"the model is of opset {copy.opset_imports['']}, whose products have no {dtype}\n"
            f"export it in opset {_LEAST_OPSET} or newer, or train in float32"
        )
    infer_shapes(copy)
    names = [str(v.name) for v in copy.graph.initializers.values() if v.dtype == _FLOAT]
    # onnxruntime has no BatchNormalization that reads two types
    stays = [_BATCH_NORM] if any(n.op_type == _BATCH_NORM for n in copy.graph) else []
    with as_graph_inputs(copy.graph, names):
        lower_training(copy, Precision(dtype=dtype, float32=stays), names)
    copy.ir_version = least_ir_version(copy)
    return copy


def loss_scale_for(dtype: str | None) -> DynamicLossScale | None:
    """The loss scale that training in a type needs: float16 loses small gradients.

    >>> loss_scale_for("float16").initial, loss_scale_for("bfloat16")
    (65536.0, None)
    """
    return DynamicLossScale() if dtype == "float16" else None


def choose_precision(setting: str, providers: Asked = None) -> str | None:
    """The type of mixed precision for a setting: "none", "auto", "bfloat16" (bf16) or "float16".

    auto is bfloat16 on a GPU and none on a CPU: onnxruntime's kernels there compute float16 in
    float32, and torch's are faster in 16 bits only on processors with instructions for them. None:
    float32.

    >>> choose_precision("auto", ["cpu"]), choose_precision("float16", ["cpu"])
    (None, 'float16')
    """
    setting = choice("none", "auto", *TYPES, *LONG_NAMES)("mixed_precision", setting)
    setting = LONG_NAMES.get(setting, setting)
    if setting == "none":
        return None
    named = [] if mentions_auto(providers) else _named(providers)
    if setting == "auto":
        return "bfloat16" if named and _is_on_gpu(*named[0]) else None
    if setting == "bfloat16" and named and named[0][0] == "CPUExecutionProvider":
        raise OptionError(
            "mixed_precision: ONNX Runtime has no products in bfloat16 on a CPU\n"
            "choose another provider, such as torch (--provider torch)"
        )
    return setting


def _named(providers: Asked) -> list[tuple[str, Mapping[str, Any]]]:
    """Providers by their full names, with their options; the default ones if none are given."""
    given: Sequence[Any] = available()[:1] if providers is None else providers
    given = [given] if isinstance(given, str) else given
    pairs = [(each, {}) if isinstance(each, str) else each for each in given]
    return [(full_name(name), options) for name, options in pairs]


def _is_on_gpu(name: str, options: Mapping[str, Any]) -> bool:
    if name in (TORCH, INDUCTOR):
        device = str(options.get("device", "auto"))
        return torch_devices([name])[0] == "cuda" if device == "auto" else device != "cpu"
    return name in _GPUS
