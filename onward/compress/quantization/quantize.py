"""quantize: make a model smaller and faster with integers, within a budget of quality, as measured.

report = quantize("model.onnx", "rows.npz", drop="1%", metric="accuracy", target="label")
if report.helped:
    report.save("small.onnx")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.quality import OwnMetric, read_metric
from onward.compress.quantization.plan_search import search_plan
from onward.compress.quantization.quantize_report import make_report, report_nothing
from onward.compress.quantization.quantize_settings import QuantizeSettings, read_settings
from onward.compress.quantization.quantizers import (
    make_quantizer,
    make_tuner,
    quantizer_key,
)
from onward.compress.quantization.side_by_side import choose_candidate
from onward.compress.quantization.subject import Subject
from onward.compress.report import Report
from onward.errors import OptionError
from onward.providers.model_sources import open_model
from onward.providers.provider_names import AUTO
from onward.runner.metrics.metric import Metric
from onward.sessions.model_description import describe

if TYPE_CHECKING:
    from onward.graph.files import Source

_QUANTIZED = (  # operators of models that are already quantized
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "DequantizeLinear",
    "MatMulNBits",
    "MatMulBnb4",
    "GatherBlockQuantized",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
    "QGemm",
)


def quantize(
    model: Source,
    data: Any = None,
    to: str = "int8",
    *,
    drop: float | str = 0.01,
    metric: str | Metric | OwnMetric | None = None,
    target: str | None = None,
    provider: str = "cpu",
    bits: float | None = None,
    size: int | str | None = None,
    block: int | None = None,
    method: str = "auto",
    processors: str | None = None,
    batch: int | None = None,
    limit: int | None = None,
    sizes: Mapping[str, int] | None = None,
    tune: Any = None,
    seed: int = 0,
    memory: bool = True,
    progress: Progress = no_progress,
) -> Report:
    """Quantize a model; what does not pay on the provider, or loses too much, stays float.

    The result is not slower than 0.97 times the original's speed (int4 and int2, which are asked
    for to save bytes, may be) and within the budget. Else `helped` is False and the report's model
    is the original.

    Args:
        model: a path, bytes, an onnx.ModelProto or an onnx_ir.Model; it is not changed
        data: calibration data, as `Calibration` takes it; None: random numbers, which show speed
            and size, but not the loss on real data
        to: "int8", "int4", "int2", "fp16", "bf16", or "auto": the best of several, measured
        drop: the share of quality that may be lost: 0.01 or "1%", of the metric, or of the
            similarity of the outputs if there is no metric
        metric: the name of a metric ("accuracy"), a Metric, or a function that gets a function
            which runs a model, and returns a number; higher is better
        target: the column of the data with the metric's targets
        provider: the provider that will run the model: "cpu", "openvino"; "auto": all of them
        bits: the average bits of a weight, for int4 and int2
        size: the bytes that the file may have ("100MB"), for int4 and int2
        block: how many weights share a scale, for int4 and int2
        method: how weights are rounded: "rtn", "mse", "gptq", "awq", "auto"
        processors: those that an int8 file is for: "this" (None) and those like it; "all": weights
            have one bit less, so that the file is exact on x86-64 without VNNI, too
        batch: rows of a batch of data
        limit: the number of batches to read at most
        sizes: sizes of dynamic dimensions to measure the speed with; else those of the first batch
        tune: learn the rounding: a time ("5min"), or a `Tune`
        seed: of random feeds and learning
        memory: whether to measure the memory of sessions, in processes of their own
        progress: gets each step: what begins now, how much is done, how much there is
    """
    settings = read_settings(
        to=to,
        drop=drop,
        provider=provider,
        bits=bits,
        size=size,
        block=block,
        method=method,
        processors=processors,
        tune=tune,
        seed=seed,
    )
    if small := [name for name, size in (sizes or {}).items() if size < 1]:
        raise OptionError(f"the size of {small[0]!r} must be at least 1, to measure the speed with")
    metric = read_metric(metric)
    opened = open_model(model)
    inputs = [describe(value) for value in opened.graph.inputs if not value.is_initializer()]
    calibration = Calibration(
        data, inputs, target=target, batch=batch, limit=limit, sizes=sizes, seed=seed
    )
    calibration.first()  # wrong data is an error before anything is measured
    settings = _with_tuning_data(settings, inputs)
    subject = Subject(
        model, calibration, metric, settings.provider, dict(sizes or {}), seed, memory
    )
    if found := _quantized_operators(opened):
        return report_nothing(subject, settings, f"the model is already quantized: it has {found}")
    if settings.to == "auto" or settings.provider == AUTO:
        return choose_candidate(subject, settings, _quantize_one, progress)
    return _quantize_one(subject, settings, progress)


def _with_tuning_data(settings: QuantizeSettings, inputs: Sequence[Any]) -> QuantizeSettings:
    """The settings with opened data to tune with: wrong data is an error before the work."""
    tune = settings.tune
    if tune is None or tune.data is None:
        return settings
    opened = Calibration(tune.data, inputs, target=tune.target)
    opened.first()
    return replace(settings, tune=replace(tune, data=opened))


def _quantize_one(subject: Subject, settings: QuantizeSettings, progress: Progress) -> Report:
    """Quantize to one format for one provider."""
    key = quantizer_key(settings)
    if key not in subject.quantizers:
        progress("preparing the model and measuring ranges", 0, None)
        subject.quantizers[key] = make_quantizer(subject, settings, progress)
    quantizer = subject.quantizers[key]
    if not quantizer.plan:
        why = Counter(quantizer.refused.values()).most_common(3)
        reasons = "; ".join(f"{count} of its layers: {reason}" for reason, count in why)
        reason = f" ({reasons})" if reasons else ""
        text = f"the model has nothing to quantize to {settings.to}{reason}"
        return report_nothing(subject, settings, text, quantizer)
    tuner = make_tuner(subject, settings, progress)
    found = search_plan(subject, quantizer, settings, tuner, progress)
    progress("measuring memory", 0, None)
    return make_report(subject, settings, quantizer, found)


def _quantized_operators(model: ir.Model) -> str:
    """What a model has of quantized operators, such as "3 QuantizeLinear"; "" if nothing."""
    counts: dict[str, int] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _QUANTIZED:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())
