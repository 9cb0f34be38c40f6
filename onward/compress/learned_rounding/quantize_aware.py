"""quantize_aware: a model that rounds as it will when it is quantized, for training of one's own.

aware = quantize_aware("model.onnx", bits=4, block=32)
session = TrainingSession(aware.model, loss, optimizer)
quantized = export_quantized(aware, session.parameters)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onward.compress.calibration import Calibration
from onward.graph.files import load
from onward.runner.finetune.quantization_aware import (
    QuantizationAware as QuantizationAware,
)
from onward.runner.finetune.quantization_aware import (
    export_quantized as export_quantized,
)
from onward.runner.finetune.quantization_aware import make_quantization_aware
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source


def quantize_aware(
    model: Source,
    data: Any = None,
    *,
    bits: int = 8,
    block: int = 0,
    targets: Sequence[str] = ("*",),
) -> QuantizationAware:
    """A model with fake quantization; `export_quantized` writes its integers after training.

    With 8 bits and no blocks, the data of layers is rounded to int8 too.

    Args:
        model: the model, which does not change
        data: what `Calibration` reads, for the ranges of int8 data; None: random feeds
        bits: of the weights: 8, 4 or 2
        block: weights of an output that share a scale; 0: all of them
        targets: names or patterns of weights, or of the nodes that read them
    """
    loaded = load(model)
    if bits < 8 or block:
        return make_quantization_aware(loaded, (), targets, bits=bits, block=block)
    known = isinstance(data, Calibration)
    calibration = data if known else Calibration(data, InferenceSession(loaded).get_inputs())
    return make_quantization_aware(loaded, calibration.batches(), targets)
