"""From a source to how it runs: as it is on onnxruntime, planned, or in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import (
    InvalidModel,
    LimitExceeded,
    MemoryLimitExceeded,
    OptionError,
    UnsupportedModel,
)
from onward.graph.paths import check_readable, read_model
from onward.graph.scan.model_scan import ModelScan, scan_model
from onward.lazy import LazyModule
from onward.providers.choose import Choice
from onward.providers.options import SessionOptions, has_own_operators
from onward.providers.ort import session as ort
from onward.providers.ort.defects import operators_in_half
from onward.providers.session_log import log_of
from onward.sessions.isolated_plan import Isolated
from onward.sessions.ort_plan import Whole

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.providers import model_sources
    from onward.sessions import planning
    from onward.sessions.partitioned_plan import Parts

    Plan = Whole | Parts | Isolated
else:  # loaded only when onnxruntime does not take the model as it is
    model_sources = LazyModule("onward.providers.model_sources")
    planning = LazyModule("onward.sessions.planning")


HALF, DOUBLE = 10, 11  # ONNX's numbers of float16 and float64


def open_plan(
    source: Source, choice: Choice, options: SessionOptions, weights: str | os.PathLike[str] | None
) -> Plan:
    """onnxruntime takes the model as it is where it is asked first and can; else it is planned."""
    if isinstance(source, (str, os.PathLike)):
        check_readable(Path(source))
    if options.isolated:
        return Isolated(source, choice, options, weights)
    if is_ort_format(source):
        return _open_ort_format(source, choice, options)
    as_it_is = weights is None and not options.own_passes and options.shared is None
    as_it_is = as_it_is and not options.initializers  # onnxruntime would not check that they fit
    data = _raw(source, options) if as_it_is and choice.leading_ort else None
    why: Exception | None = None
    look = _look(data, options, source) if data is not None else None
    if data is not None and look is not None and not _needs_planning(look, choice):
        _check_size(len(data), options)
        if options.memory_limit is not None:
            planning.check_memory(model_sources.open_model(source, None, options.limits), options)
        try:
            whole = Whole(ort.create(data, options, choice.leading_ort, look=look), options)
            if choice.named or not _has_doubtful_types(whole, look, choice):
                return whole
        except OptionError:
            raise
        except Exception as error:  # another way may open it; else this is the cause
            why = error
    hint = why or "see docs/providers.md"
    log_of(options).info("the model is not for onnxruntime as it is: %s", hint)
    try:
        return planning.plan(source, choice, options, weights)
    except UnsupportedModel as error:
        raise error from why


def _open_ort_format(source: Source, choice: Choice, options: SessionOptions) -> Whole:
    """ORT format is onnxruntime's own: no other engine reads it."""
    if not choice.leading_ort:
        raise InvalidModel("an ORT-format model runs on onnxruntime's providers alone\nlist one")
    data = _raw(source, options)
    assert data is not None
    _check_size(len(data), options)
    if b"EPContext" in data and not options.limits.allow_ep_context:
        raise LimitExceeded(
            "the ORT-format model mentions EPContext, another engine's compiled program\n"
            "if you trust this model, set ModelLimits.allow_ep_context"
        )
    try:
        return Whole(ort.create(data, options, choice.leading_ort), options)
    except Exception as error:
        raise InvalidModel(f"onnxruntime cannot load this ORT-format model: {error}") from error


def _look(data: bytes, options: SessionOptions, source: Source) -> ModelScan:
    """What is in the model; its limits are held before anybody loads it."""
    name = "these bytes" if isinstance(source, bytes) else str(source)
    return scan_model(data, options.limits, any_domain=has_own_operators(options), name=name)


def _raw(source: Source, options: SessionOptions) -> bytes | None:
    """The model's own bytes, where onnxruntime can read them without us."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix in (".onnx", ".ort", ""):
            return read_model(path, options.limits.file_bytes)
    return None


def _needs_planning(look: ModelScan, choice: Choice) -> bool:
    """Whether onnxruntime may not have the model as it is.

    From bytes, it would look for external data in the working directory; and unless the user
    named it, what it is known to get wrong goes elsewhere.
    """
    suspicious = choice.may_move and bool(look.doubtful)
    return bool(choice.failed) or suspicious or bool(look.external)


def _has_doubtful_types(whole: Whole, look: ModelScan, choice: Choice) -> bool:
    """Whether onnxruntime may get the model wrong in the types that it computes in.

    That is where it would add up float16 products in float16, and in float64's Attention.
    """
    types = {arg.type for arg in (*whole.get_inputs(), *whole.get_outputs())}
    operators = {name for _, name in look.operators}
    has_double = "tensor(double)" in types or DOUBLE in look.casts_to
    if choice.may_move and has_double and "Attention" in operators:
        return True
    if "tensor(float16)" not in types and HALF not in look.casts_to:
        return False
    return bool(operators & operators_in_half())


def is_ort_format(source: Source) -> bool:
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".ort"


def _check_size(size: int, options: SessionOptions) -> None:
    if options.memory_limit is not None and size > options.memory_limit:
        raise MemoryLimitExceeded(
            f"the model's {size:,} bytes are more than the memory limit of {options.memory_limit:,}"
        )
