"""The quantizer of a format, and the learning of its rounding; each is imported when needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quantization.plan_search import Tuner
from onward.compress.quantization.quantization_plan import Quantizer
from onward.compress.quantization.quantize_settings import QuantizeSettings
from onward.compress.quantization.subject import Subject
from onward.graph.int8_weights import ALL, CUT_OFF_FREE
from onward.lazy import LazyModule
from onward.providers.ort import exact_products

if TYPE_CHECKING:
    from onward.compress.distillation import teacher_outputs
    from onward.compress.learned_rounding import quantized_weights, tune_rounding
    from onward.compress.learned_rounding.tune_rounding import Learned
    from onward.compress.quantization.half import quantizer as half
    from onward.compress.quantization.int8 import quantizer as int8
    from onward.compress.quantization.weights import quantizer as weights
else:
    teacher_outputs = LazyModule("onward.compress.distillation.teacher_outputs")
    quantized_weights = LazyModule("onward.compress.learned_rounding.quantized_weights")
    tune_rounding = LazyModule("onward.compress.learned_rounding.tune_rounding")
    half = LazyModule("onward.compress.quantization.half.quantizer")
    int8 = LazyModule("onward.compress.quantization.int8.quantizer")
    weights = LazyModule("onward.compress.quantization.weights.quantizer")

_NOTHING_TO_TUNE = (
    "no weight has a rounding to tune: those that several products read, and those inside of If, "
    "Loop or Scan, keep theirs"
)


def quantizer_key(settings: QuantizeSettings) -> str:
    """What names a quantizer: its format; for int8 the provider too, as kernels differ."""
    return f"{settings.to} {settings.provider}" if settings.to == "int8" else settings.to


def make_quantizer(subject: Subject, settings: QuantizeSettings, progress: Progress) -> Quantizer:
    """The quantizer of the format that was asked for, with its statistics measured."""
    model = subject.copy()
    calibration = None if subject.calibration.is_random else subject.calibration
    if settings.to == "int8":
        largest = CUT_OFF_FREE if settings.processors == ALL else exact_products.largest_weight()
        return int8.Int8Quantizer(
            model, calibration, provider=settings.provider, largest=largest, progress=progress
        )
    if settings.to in ("int4", "int2"):
        return weights.WeightQuantizer(
            model,
            calibration,
            bits=int(settings.to.removeprefix("int")),
            block=settings.block,
            method=settings.method,
            average_bits=settings.bits,
            size=settings.size,
            progress=progress,
        )
    kind = "float16" if settings.to == "fp16" else "bfloat16"
    return half.HalfQuantizer(model, calibration, kind=kind)


def make_tuner(subject: Subject, settings: QuantizeSettings, progress: Progress) -> Tuner | None:
    """A function that learns the rounding of a quantized model; None if it is not asked for."""
    chosen = settings.tune
    if chosen is None or not settings.to.startswith("int"):
        return None

    def learn(model: ir.Model) -> Learned:
        if not quantized_weights.find_weights(model):
            return tune_rounding.Learned(model, False, _NOTHING_TO_TUNE)
        tune = chosen
        if chosen.folder is not None:  # a plan depends on timings, and each has its own state
            tune = replace(
                chosen, folder=Path(chosen.folder) / teacher_outputs.model_digest(model)[:16]
            )
        return tune_rounding.learn_rounding(
            subject.copy(), model, subject.calibration, tune, progress=progress
        )

    return learn
