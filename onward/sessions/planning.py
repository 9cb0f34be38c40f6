"""From a model to how it runs: load, prepare, optimise, divide, compile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import onnx_ir as ir

from onward.errors import InvalidModel, MemoryLimitExceeded, OnwardError, OptionError
from onward.graph.files import Source, external_tensors, load, save, weight_bytes
from onward.graph.shapes import fix_dimensions
from onward.graph.weights import swap_weights
from onward.lazy import LazyModule
from onward.passes.pipelines import PREPARE, inference
from onward.passes.precision import widen_sums
from onward.providers.choose import Choice
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.ort.defects import adds_in_half, defect
from onward.providers.ort.provider import serialize
from onward.sessions.parts import Parts, assign
from onward.sessions.whole import Whole

programs = LazyModule("onward.providers.torch.programs")
preview = LazyModule("onward.gradients.preview")

TRAINING_DOMAIN = "ai.onnx.preview.training"
_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}


def open_model(source: Source, weights: str | os.PathLike[str] | None = None) -> ir.Model:
    """A model of our own to change: read, or copied from the caller's."""
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".pt2":
        model: ir.Model = programs.read_program(source)
    else:
        model = load(source)
        model = model.clone() if isinstance(source, ir.Model) else model
    if weights is not None:
        swap_weights(model, weights)
    return model


def plan(
    source: Source, choice: Choice, options: SessionOptions, weights: str | os.PathLike[str] | None
) -> Whole | Parts:
    """Whole on onnxruntime where it can, parts over the providers of the choice otherwise."""
    model = open_model(source, weights)
    _check_memory(model, options)
    try:
        trains = _has_training_nodes(model)
        model = preview.expand(model) if trains else model
        return _planned(model, source, choice, options, weights is None and not trains)
    except OnwardError:
        raise
    except Exception as error:  # a broken model shows itself in many ways
        first = (str(error).splitlines() or [""])[0][:200]
        raise InvalidModel(
            f"the model could not be prepared: {type(error).__name__}: {first}"
        ) from error


def _planned(
    model: ir.Model, source: Source, choice: Choice, options: SessionOptions, as_it_is: bool
) -> Whole | Parts:
    widen = not choice.named and _mentions_half(model) and adds_in_half()
    if widen:
        model = widen_sums(PREPARE(model))
    if choice.leading_ort and not choice.failed and not (choice.may_move and _has_defect(model)):
        if as_it_is and not widen and external_tensors(model):
            with contextlib.suppress(Exception):
                return _mapped(source, choice, options)
        with contextlib.suppress(Exception):
            return _whole(model, choice, options)
    return _divided(model, choice, options, widen)


def _mapped(source: Source, choice: Choice, options: SessionOptions) -> Whole:
    """By its path: onnxruntime maps the external data, which `load` saw to stay in its folder."""
    assert isinstance(source, (str, os.PathLike))
    return Whole(ort.create(os.fspath(source), options, choice.leading_ort), options)


def _whole(model: ir.Model, choice: Choice, options: SessionOptions) -> Whole:
    """As bytes, the larger weights beside them."""
    proto, outside = serialize(model)
    return Whole(ort.create(proto, options, choice.leading_ort, outside), options, outside)


def _divided(
    model: ir.Model, choice: Choice, options: SessionOptions, widen: bool
) -> Whole | Parts:
    """Prepared, optimised and cut into parts; whole again where all of it is onnxruntime's."""
    if options.free_dimensions or options.free_dimension_denotations:
        fix_dimensions(model, options.free_dimensions, options.free_dimension_denotations)
    model = inference(options.graph_optimization_level)(PREPARE(model))
    model = widen_sums(model) if widen else model
    if options.optimized_model_filepath:
        save(model, options.optimized_model_filepath)
    engines = choice.engines(options)
    parts = assign(model, engines, choice)
    if len(parts) == 1 and parts[0].provider == 0 and engines[0].is_ort:
        return _whole(model, choice, options)
    return Parts(model, parts, engines, options)


def _has_training_nodes(model: ir.Model) -> bool:
    """Whether operators of ONNX's training standard are in use, which no engine has."""
    imports = (model.opset_imports, *(f.opset_imports for f in model.functions.values()))
    return any(TRAINING_DOMAIN in each for each in imports)


def _mentions_half(model: ir.Model) -> bool:
    """Whether float16 comes into the model: by a feed, a weight or a Cast."""
    half = ir.DataType.FLOAT16
    for graph in model.graphs():
        if any(value.dtype == half for value in (*graph.inputs, *graph.initializers.values())):
            return True
        if any(
            node.op_type == "Cast" and node.attributes.get_int("to", 0) == half for node in graph
        ):
            return True
    return False


def _has_defect(model: ir.Model) -> bool:
    return any(defect(node) for graph in model.graphs() for node in graph)


def _check_memory(model: ir.Model, options: SessionOptions) -> None:
    size = weight_bytes(model)
    if options.memory_limit is not None and size > options.memory_limit:
        raise MemoryLimitExceeded(
            f"the model's weights of {size:,} bytes are more than "
            f"the memory limit of {options.memory_limit:,}"
        )


def check_deterministic(source: Source) -> None:
    """Results may be remembered only where the same feeds always give the same results."""
    for graph in open_model(source).graphs():
        for node in graph:
            if node.op_type in _RANDOM:
                raise OptionError(
                    f"result_cache_bytes: {node.op_type} (node {node.name!r}) draws at random\n"
                    "leave the cache off for this model"
                )
