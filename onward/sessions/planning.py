"""From a model to how it runs: load, prepare, optimise, divide, compile."""

from __future__ import annotations

import os
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
from onward.graph.files import Source, save, weight_bytes
from onward.graph.limits import DEFAULT_LIMITS, ModelLimits
from onward.graph.operators import is_random, is_random_contrib
from onward.graph.scopes import walk
from onward.graph.shapes.infer import fix_dimensions
from onward.graph.weights import set_initializers
from onward.lazy import LazyModule
from onward.measure.memory.budget import check_opening
from onward.passes.composites import has_calls, inline_calls
from onward.passes.normalize import inline_functions, lift_constants, unify_default_domain
from onward.passes.pipelines import PREPARE, inference
from onward.passes.wide_sums import widen_sums
from onward.providers.choose import Choice
from onward.providers.model_sources import open_model
from onward.providers.options import SessionOptions, has_own_operators
from onward.providers.ort import session as ort
from onward.providers.ort.defects import defect, operators_in_half
from onward.providers.ort.ort_values import to_numpy
from onward.providers.ort.provider import serialize
from onward.providers.session_log import log_of
from onward.sessions.ort_plan import Whole
from onward.sessions.partitioned_plan import Parts, assign, keep_calls

preview = LazyModule("onward.gradients.training_operators")

TRAINING_DOMAIN = "ai.onnx.preview.training"


def plan(
    source: Source, choice: Choice, options: SessionOptions, weights: str | os.PathLike[str] | None
) -> Whole | Parts:
    """Whole on onnxruntime where it can, parts over the providers of the choice otherwise."""
    model = open_model(source, weights, options.limits, any_domain=has_own_operators(options))
    try:
        given = {name: ir.tensor(to_numpy(value)) for name, value in options.initializers.items()}
        set_initializers(model, given)
        check_memory(model, options)
        by_path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        trains = _has_training_nodes(model)
        model = preview.expand(model) if trains else model
        if weights is not None or trains or not options.limits.allow_data_by_path:
            by_path = None
        return _planned(model, choice, options, by_path)
    except OnwardError:
        raise
    except Exception as error:  # a broken model shows itself in many ways
        first = (str(error).splitlines() or [""])[0][:200]
        raise InvalidModel(
            f"the model could not be prepared: {type(error).__name__}: {first}"
        ) from error


def _planned(
    model: ir.Model, choice: Choice, options: SessionOptions, by_path: str | None
) -> Whole | Parts:
    if choice.leading_ort and has_calls(model):  # it has no kernels for them
        model, by_path = inline_calls(PREPARE(model)), None
    half = not choice.named and _mentions(model, ir.DataType.FLOAT16)
    widen = operators_in_half() if half else frozenset()
    if widen:
        model = widen_sums(PREPARE(model), widen)
    elif choice.may_move and _has_double_attention(model):
        model = PREPARE(model)  # its defect is one of the type
    moves = choice.failed or (choice.may_move and _has_defect(model))
    if choice.leading_ort and not moves and not options.own_passes:
        try:
            if by_path is not None and not widen and external_tensors(model):
                return Whole(ort.create(by_path, options, choice.leading_ort), options)
            return _whole(model, choice, options)
        except (LimitExceeded, OptionError):
            raise
        except Exception as error:  # the parts of it may do better
            log_of(options).info("onnxruntime does not take the model whole: %s", error)
    return _divided(model, choice, options, widen)


def _whole(model: ir.Model, choice: Choice, options: SessionOptions) -> Whole:
    """As bytes, the larger weights beside them."""
    proto, outside = serialize(model)
    native = ort.create(proto, options, choice.leading_ort, outside)
    forget_pages(model)  # onnxruntime has made its own copy
    return Whole(native, options)


def _divided(
    model: ir.Model, choice: Choice, options: SessionOptions, widen: frozenset[str]
) -> Whole | Parts:
    """Prepared, optimised and cut into parts; whole again where all of it is onnxruntime's."""
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
        return _whole(model, choice, options)
    return Parts(model, parts, engines, options)


def _has_training_nodes(model: ir.Model) -> bool:
    """Whether operators of ONNX's training standard are in use, which no engine has."""
    imports = (model.opset_imports, *(f.opset_imports for f in model.functions.values()))
    return any(TRAINING_DOMAIN in each for each in imports)


def _mentions(model: ir.Model, dtype: ir.DataType) -> bool:
    """Whether a type comes into the model: by a feed, a weight or a Cast."""
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
    """Refuse what the memory limit cannot hold: the weights, or they and what a run needs."""
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


def check_deterministic(source: Source, limits: ModelLimits = DEFAULT_LIMITS) -> None:
    """Results may be remembered only where the same feeds always give the same results.

    Functions are inlined first: what they are called with may turn a Dropout off.
    """
    opened = open_model(source, limits=limits)
    model = lift_constants(inline_functions(unify_default_domain(opened)))
    for node in walk(model.graph):
        if is_random(node) or is_random_contrib(node):
            raise OptionError(
                f"result_cache_bytes: {node.op_type} (node {node.name!r}) draws at random\n"
                "leave the cache off for this model"
            )
