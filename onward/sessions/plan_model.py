"""Plan a model for its providers: prepare, optimise, divide, compile."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onward.errors import (
    InvalidModel,
    LimitExceeded,
    MemoryLimitExceeded,
    OnwardError,
    OptionError,
)
from onward.graph.external import external_tensors, forget_pages
from onward.graph.files import save, weight_bytes
from onward.graph.operators import is_random, is_random_contrib
from onward.graph.scopes import walk
from onward.graph.shapes.infer import fix_dimensions
from onward.graph.weights import set_initializers
from onward.lazy import LazyModule
from onward.measure.memory.budget import check_opening
from onward.passes.composites import has_calls, inline_calls
from onward.passes.normalize import inline_functions, lift_constants, unify_default_domain
from onward.passes.ort_workarounds import misreads_scales
from onward.passes.pipelines import PREPARE, inference
from onward.passes.wide_sums import widen_sums
from onward.providers.choose import ProviderChoice
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.ort.defects import defect, operators_in_half
from onward.providers.ort.ort_values import to_numpy
from onward.providers.ort.provider import serialize
from onward.providers.session_log import log_of
from onward.sessions.model_reader import ModelReader
from onward.sessions.ort_plan import OrtPlan
from onward.sessions.partitioned_plan import PartitionedPlan, assign, keep_calls

preview = LazyModule("onward.gradients.training_operators")

TRAINING_DOMAIN = "ai.onnx.preview.training"


def plan_model(
    reader: ModelReader, choice: ProviderChoice, options: SessionOptions
) -> OrtPlan | PartitionedPlan:
    """One onnxruntime session where it runs all of the model; else parts over the providers."""
    model = reader.take_model()
    try:
        given = {name: ir.tensor(to_numpy(value)) for name, value in options.initializers.items()}
        set_initializers(model, given)
        check_memory(model, options)
        trains = _has_training_nodes(model)
        model = preview.expand(model) if trains else model
        is_changed = reader.weights_file is not None or trains
        is_by_path = options.limits.allow_data_by_path and not is_changed
        return _open_prepared(model, reader if is_by_path else None, choice, options)
    except OnwardError:
        raise
    except Exception as error:  # a broken model shows itself in many ways
        first = (str(error).splitlines() or [""])[0][:200]
        raise InvalidModel(
            f"the model could not be prepared: {type(error).__name__}: {first}"
        ) from error


def _open_prepared(
    model: ir.Model, file: ModelReader | None, choice: ProviderChoice, options: SessionOptions
) -> OrtPlan | PartitionedPlan:
    """Rewrite what onnxruntime lacks or computes wrong; `file` is the model's, if unchanged."""
    if choice.leading_ort and has_calls(model):  # it has no kernels for them
        model, file = inline_calls(PREPARE(model)), None
    half = not choice.named and _mentions(model, ir.DataType.FLOAT16)
    widen = operators_in_half() if half else frozenset()
    if widen:
        model = widen_sums(PREPARE(model), widen)
    elif choice.may_move and _has_double_attention(model):
        model = PREPARE(model)  # the defect shows only with known types
    moves = choice.failed or (choice.may_move and _has_defect(model))
    if choice.leading_ort and not moves and not options.own_passes:
        try:
            path = None if file is None else file.path
            if file is not None and path is not None and not widen and _runs_by_path(model):
                native = ort.create(path, options, choice.leading_ort, scan=file.scan)
                return OrtPlan(native, options)
            return _open_in_ort(model, choice, options)
        except (LimitExceeded, OptionError):
            raise
        except Exception as error:  # it may run parts of the model
            log_of(options).info("onnxruntime does not run the whole model: %s", error)
    return _open_parts(model, choice, options, widen)


def _open_in_ort(model: ir.Model, choice: ProviderChoice, options: SessionOptions) -> OrtPlan:
    """All of the model in one onnxruntime session: as bytes, the larger weights separately."""
    proto, outside = serialize(model)
    native = ort.create(proto, options, choice.leading_ort, outside)
    forget_pages(model)  # onnxruntime has copied them
    return OrtPlan(native, options)


def _open_parts(
    model: ir.Model, choice: ProviderChoice, options: SessionOptions, widen: frozenset[str]
) -> OrtPlan | PartitionedPlan:
    """Prepared, optimised and divided; in one session again where all parts are onnxruntime's."""
    options = replace(options, initializers={})  # they are in the model, and passes rewrite them
    if options.free_dimensions or options.free_dimension_denotations:
        fix_dimensions(model, options.free_dimensions, options.free_dimension_denotations)
    engines = choice.engines(options)
    model = keep_calls(PREPARE(model), engines)
    model = inference(options.graph_optimization_level)(model)
    model = widen_sums(model, widen) if widen else model
    if options.optimized_model_filepath:
        save(model, options.optimized_model_filepath)
    parts = assign(model, engines, choice)
    if len(parts) == 1 and parts[0].provider == 0 and engines[0].is_ort:
        return _open_in_ort(model, choice, options)
    return PartitionedPlan(model, parts, engines, options)


def _runs_by_path(model: ir.Model) -> bool:
    """Whether onnxruntime may read a model with external data from its file, unchanged."""
    return bool(external_tensors(model)) and not any(map(misreads_scales, walk(model.graph)))


def _has_training_nodes(model: ir.Model) -> bool:
    """Whether operators of ONNX's training standard are used, which no engine has."""
    imports = (model.opset_imports, *(f.opset_imports for f in model.functions.values()))
    return any(TRAINING_DOMAIN in each for each in imports)


def _mentions(model: ir.Model, dtype: ir.DataType) -> bool:
    """Whether an element type is in the model: of an input, an initializer or a Cast."""
    for graph in model.graphs():
        if any(value.dtype == dtype for value in (*graph.inputs, *graph.initializers.values())):
            return True
        if any(
            node.op_type == "Cast" and node.attributes.get_int("to", 0) == dtype for node in graph
        ):
            return True
    return False


def _has_double_attention(model: ir.Model) -> bool:
    """Whether an Attention may be of float64."""
    names = {node.op_type for graph in model.graphs() for node in graph}
    return "Attention" in names and _mentions(model, ir.DataType.DOUBLE)


def _has_defect(model: ir.Model) -> bool:
    return any(defect(node) for graph in model.graphs() for node in graph)


def check_memory(model: ir.Model, options: SessionOptions) -> None:
    """Refuse a model whose weights, or weights and values of a run, exceed the memory limit."""
    limit, size = options.memory_limit, weight_bytes(model)
    if limit is None:
        return
    if size > limit:
        raise MemoryLimitExceeded(
            f"the model's weights of {size:,} bytes are more than the memory limit of {limit:,}"
        )
    fixed = model.clone()
    if options.free_dimensions or options.free_dimension_denotations:
        fix_dimensions(fixed, options.free_dimensions, options.free_dimension_denotations)
    check_opening(fixed, limit)


def check_deterministic(model: ir.Model) -> None:
    """Refuse a result cache for a model that draws random numbers.

    Functions are inlined first: their arguments may turn a Dropout off.
    """
    model = lift_constants(inline_functions(unify_default_domain(model.clone())))
    for node in walk(model.graph):
        if is_random(node) or is_random_contrib(node):
            raise OptionError(
                f"result_cache_bytes: {node.op_type} (node {node.name!r}) draws random numbers\n"
                "leave the cache off for this model"
            )
