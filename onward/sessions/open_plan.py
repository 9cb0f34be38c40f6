"""From a source to a plan: isolated, as it is on onnxruntime, or prepared for the providers."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import (
    InvalidModel,
    LimitExceeded,
    MemoryLimitExceeded,
    OnwardError,
    OptionError,
    UnsupportedModel,
)
from onward.graph.int8_weights import CUT_OFF_FREE
from onward.graph.scan.model_scan import ModelScan
from onward.graph.scan.onnx_messages import ScannedTensor
from onward.lazy import LazyModule
from onward.providers.choose import ProviderChoice
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.ort.defects import operators_in_half
from onward.providers.session_log import log_of
from onward.sessions.isolated_plan import IsolatedPlan
from onward.sessions.model_reader import ModelReader
from onward.sessions.ort_plan import OrtPlan
from onward.sessions.plan import Plan

if TYPE_CHECKING:
    from onward.graph import external
    from onward.graph.files import Source
    from onward.providers.ort import exact_products
    from onward.sessions import plan_model
else:  # loaded only when onnxruntime does not take the model as it is
    external = LazyModule("onward.graph.external")
    exact_products = LazyModule("onward.providers.ort.exact_products")
    plan_model = LazyModule("onward.sessions.plan_model")

HALF, DOUBLE = 10, 11  # ONNX's numbers of float16 and float64


def open_source(
    source: Source,
    choice: ProviderChoice,
    options: SessionOptions,
    weights: str | os.PathLike[str] | None,
) -> Plan:
    """Open a model in a separate process if the options ask for it, else in this one."""
    reader = ModelReader(source, options, weights)
    if options.isolated:
        return IsolatedPlan(source, choice, options, weights)
    return open_plan(reader, choice, options)


def open_plan(reader: ModelReader, choice: ProviderChoice, options: SessionOptions) -> Plan:
    """Give onnxruntime the model as it is where it is the first provider and can run it.

    Everything else is prepared, and divided among the providers where necessary.
    """
    if reader.is_ort_format:
        return _open_ort_format(reader, choice, options)
    if options.result_cache_bytes:
        plan_model.check_deterministic(reader.view_model())
    _warn_of_large_weights(reader, choice, options)
    cause: Exception | None = None
    data, scan = _data_for_ort(reader, choice, options)
    if data is not None:
        try:
            plan = OrtPlan(ort.create(data, options, choice.leading_ort, scan=scan), options)
            if scan is None or choice.named or not _has_doubtful_types(plan, scan, choice):
                return plan
        except OptionError:
            raise
        except Exception as error:  # the other providers may open it; else this is the cause
            cause = error
    reason = cause or "see docs/providers.md"
    log_of(options).info("onnxruntime does not run the model as it is: %s", reason)
    try:
        return plan_model.plan_model(reader, choice, options)
    except UnsupportedModel as error:
        raise error from cause


def _open_ort_format(
    reader: ModelReader, choice: ProviderChoice, options: SessionOptions
) -> OrtPlan:
    """Open a model in onnxruntime's own format, which no other engine reads."""
    if options.result_cache_bytes:
        raise OptionError(
            "result_cache_bytes: whether an ORT-format model draws random numbers is unknown\n"
            "leave the cache off, or use the ONNX model"
        )
    if not choice.leading_ort:
        raise InvalidModel(
            "an ORT-format model runs only on onnxruntime's providers, and the first that is "
            'listed is another\nlist one first, such as providers=["CPUExecutionProvider"]'
        )
    data = reader.data
    assert data is not None
    _check_size(len(data), options)
    if b"EPContext" in data and not options.limits.allow_ep_context:
        raise LimitExceeded(
            "the ORT-format model mentions EPContext, another engine's compiled program\n"
            "if you trust this model, set ModelLimits.allow_ep_context"
        )
    try:
        return OrtPlan(ort.create(data, options, choice.leading_ort), options)
    except Exception as error:
        raise InvalidModel(f"onnxruntime cannot load this ORT-format model: {error}") from error


def _data_for_ort(
    reader: ModelReader, choice: ProviderChoice, options: SessionOptions
) -> tuple[bytes, ModelScan] | tuple[None, None]:
    """The model's own bytes and their scan; None if onnxruntime must not get them as they are."""
    changed = reader.weights_file is not None or options.own_passes or options.shared is not None
    if changed or options.initializers or not choice.leading_ort:
        return None, None  # onnxruntime would not check that initializers fit
    data, scan = reader.data, reader.scan
    if data is None or scan is None or _needs_preparing(scan, choice):
        return None, None
    _check_size(len(data), options)
    if options.memory_limit is not None:
        plan_model.check_memory(reader.view_model(), options)
    return data, scan


def _needs_preparing(scan: ModelScan, choice: ProviderChoice) -> bool:
    """Whether onnxruntime must not get the model as it is.

    From bytes, it would look for external data in the working directory. Operators that it is
    known to compute wrong go to another provider, unless the user named providers. And scales of
    weights that it misreads are rewritten.
    """
    suspicious = choice.may_move and bool(scan.doubtful)
    misread = scan.products.has_misread_scales
    return bool(choice.failed) or suspicious or misread or bool(scan.external)


def _warn_of_large_weights(
    reader: ModelReader, choice: ProviderChoice, options: SessionOptions
) -> None:
    """Warn of 8-bit weights whose products this processor cuts off."""
    first = next((name for name, _ in choice.listed), "")
    if first not in ("CPUExecutionProvider", "OpenVINOExecutionProvider"):
        return
    data, scan = reader.data, reader.scan
    if data is None or scan is None or not scan.products.weights:
        return
    if exact_products.largest_weight() > CUT_OFF_FREE:
        return
    read = None if reader.path is None else partial(_read_external, Path(reader.path).parent)
    try:
        is_large = scan.products.has_large_weights(data, read)
    except OnwardError:  # such as a file that is missing, which is an error where it is needed
        return
    if is_large:
        log_of(options).warning(
            "%s has 8-bit weights beyond 64: this processor, x86-64 without VNNI, cuts off sums of "
            "their products; quantize the model for all processors, or run it on another one",
            reader.path or "the model",
        )


def _read_external(folder: Path, tensor: ScannedTensor) -> memoryview:
    """The 8-bit numbers of a tensor in another file."""
    what = f"external data of {tensor.name!r}"
    return external.map_range(tensor.external or {}, tensor.size, folder, what)


def _has_doubtful_types(plan: OrtPlan, scan: ModelScan, choice: ProviderChoice) -> bool:
    """Whether onnxruntime may compute the model wrong because of its element types.

    It accumulates matrix products of float16 in float16, and gets Attention in float64 wrong.
    """
    types = {arg.type for arg in (*plan.get_inputs(), *plan.get_outputs())}
    operators = {name for _, name in scan.operators}
    has_double = "tensor(double)" in types or DOUBLE in scan.casts_to
    if choice.may_move and has_double and "Attention" in operators:
        return True
    if "tensor(float16)" not in types and HALF not in scan.casts_to:
        return False
    return bool(operators & operators_in_half())


def _check_size(size: int, options: SessionOptions) -> None:
    if options.memory_limit is not None and size > options.memory_limit:
        raise MemoryLimitExceeded(
            f"the model's {size:,} bytes are more than the memory limit of {options.memory_limit:,}"
        )
