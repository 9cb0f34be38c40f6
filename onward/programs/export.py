"""Export an inference model: the original model with its trained tensors.

trained = export_model(original, session.tensors, outputs=["logits"])
onward.graph.files.save(trained, "trained.onnx")   # large weights in a second file
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, WeightsError
from onward.graph.files import least_ir_version, load, save
from onward.graph.scopes import walk
from onward.graph.shapes.infer import infer_shapes
from onward.message_text import suggest_names
from onward.passes.drop_unused import drop_unused
from onward.passes.exporters.constant_weights import lift_constant_weights
from onward.passes.exporters.restore_parameters import find_ties, split_merged_parameters
from onward.passes.linear_models import write_linear_models
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import eval_mode, separate_statistics
from onward.programs.program import Layout
from onward.programs.select import initializers, unique_initializer_names

Array = np.ndarray[Any, Any]


def export_model(
    original: ir.Model,
    tensors: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
) -> ir.Model:
    """A copy of the original model with these tensors as initializers, in inference mode.

    `outputs` are its outputs, in order, intermediate values included; None: the original ones.
    Unused nodes, weights and inputs (such as labels) are removed. `inputs` are the inputs to keep,
    in order; None: those that are used. Names, opset and metadata do not change. Tensors are
    converted to the types of the initializers: parameters of a float16 model, which are trained in
    float32, are rounded.
    """
    copy = _with_tensors(original, tensors)
    if outputs is not None:
        _set_outputs(copy, outputs)
    eval_mode(copy)
    _set_inputs(copy, inputs)
    drop_unused(copy)
    _drop_functions(copy)
    copy.ir_version = least_ir_version(copy)
    return copy


def write(
    layout: Layout,
    tensors: Mapping[str, Array],
    path: str | os.PathLike[str],
    outputs: Sequence[str] | None = None,
) -> None:
    """Save the model of a program with these tensors; large weights go to a second file."""
    if layout.model is None:
        raise OptionError(
            "the program does not contain the model from which it was compiled: nothing to export\n"
            "compile it again, or use export_model with the original model"
        )
    save(export_model(load(layout.model, any_domain=True), tensors, outputs), path)


# -- tensors -------------------------------------------------------------------------------------


def _with_tensors(original: ir.Model, tensors: Mapping[str, Array]) -> ir.Model:
    """A copy with the tensors; prepared only if names exist only in the prepared model."""
    copy = unique_initializer_names(lift_constant_weights(original.clone(), tensors))
    split_merged_parameters(copy)
    places = {str(value.name): value for value in initializers(copy)}
    if not places.keys() >= tensors.keys():  # merged statistics
        separate_statistics(copy)
        places = {str(value.name): value for value in initializers(copy)}
    if not places.keys() >= tensors.keys():  # coefficients that were attributes
        copy = write_linear_models(copy)
        places = {str(value.name): value for value in initializers(copy)}
    if not places.keys() >= tensors.keys():  # weights in functions
        copy = separate_statistics(PREPARE(copy))
        places = {str(value.name): value for value in initializers(copy)}
    for name, array in {**tied_tensors(copy, tensors), **tensors}.items():
        if name not in places:
            raise WeightsError(
                f"the model has no initializer {name!r}\n{suggest_names(name, places)}"
            )
        places[name].const_value = _fitted(name, np.asarray(array), places[name])
    return copy


def tied_tensors(model: ir.Model, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors of tied copies of the parameters."""
    found = {name: each for name, each in find_ties(model).items() if each[0] in tensors}
    return {
        name: np.asarray(tensors[parameter]).T if transposed else tensors[parameter]
        for name, (parameter, transposed) in found.items()
    }


def _fitted(name: str, array: Array, value: ir.Value) -> ir.TensorProtocol:
    """The array in the type of an initializer; an error if the shapes differ."""
    old = value.const_value
    assert old is not None
    shape, dtype = tuple(old.shape.numpy()), old.dtype
    if array.shape != shape:
        raise WeightsError(f"tensor {name!r} has shape {array.shape}, the model {shape}")
    kind = ir.DataType.from_numpy(array.dtype)
    if kind != dtype:
        if not (kind.is_floating_point() and dtype.is_floating_point()):
            raise WeightsError(
                f"tensor {name!r} is {kind.name}, the model has {dtype.name}\n"
                "only floats are rounded to other floats: convert it first"
            )
        with np.errstate(over="ignore"):
            rounded = array.astype(dtype.numpy())
        lost = np.isfinite(array) & ~np.isfinite(rounded)
        if lost.any():
            raise WeightsError(
                f"tensor {name!r} holds {array[lost].flat[0]}, which {dtype.name} cannot\n"
                "train with smaller weights, or export a model of a wider type"
            )
        array = rounded
    return ir.Tensor(np.ascontiguousarray(array).reshape(shape), dtype=dtype, name=name)


# -- inputs and outputs --------------------------------------------------------------------------


def _set_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Set the graph's outputs; intermediate values get a type."""
    graph = model.graph
    names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    if not names:
        raise OptionError("outputs is empty: an exported model needs at least one output")
    returned = {str(value.name): value for value in graph.outputs}
    made = {str(v.name): v for node in graph for v in node.outputs if v.name}
    given = {*graph.initializers, *(str(value.name) for value in graph.inputs)}
    for name in names:
        if name in given and name not in returned:
            raise OptionError(
                f"{name!r} is an input or initializer of the model: it cannot be an output\n"
                f"{suggest_names(name, made)}"
            )
        if name not in made and name not in returned:
            raise OptionError(
                f"the model has no value {name!r}\n{suggest_names(name, [*returned, *made])}"
            )
    values = [returned.get(name) or made[name] for name in names]
    if any(value.type is None or value.shape is None for value in values):
        infer_shapes(model)
    for value in values:
        if value.type is None:
            raise OptionError(
                f"the type of {value.name!r} is not known, so it cannot be an output\n"
                "add it to the model's value_info"
            )
    graph.outputs.clear()
    graph.outputs.extend(values)


def _set_inputs(model: ir.Model, names: Sequence[str] | None) -> None:
    """Set the graph's inputs; None: those that are used."""
    graph = drop_unused(model).graph
    given = {str(value.name): value for value in graph.inputs}
    needed = [name for name, value in given.items() if value.uses() or value.is_graph_output()]
    if names is None:
        kept = needed
    else:
        kept = [names] if isinstance(names, str) else list(dict.fromkeys(names))
        for name in kept:
            if name not in given:
                raise OptionError(f"the model has no input {name!r}\n{suggest_names(name, given)}")
        for name in needed:
            if name not in kept and not given[name].is_initializer():
                raise OptionError(
                    f"the outputs depend on input {name!r}, which is not among the inputs to "
                    "keep\nname it too, or ask for other outputs"
                )
    graph.inputs.clear()
    graph.inputs.extend(given[name] for name in kept)


def _drop_functions(model: ir.Model) -> None:
    """Remove unused functions."""
    called: set[ir.OperatorIdentifier] = set()
    waiting = [model.graph]
    while waiting:
        for node in walk(waiting.pop()):
            key = node.op_identifier()
            if key in model.functions and key not in called:
                called.add(key)
                waiting.append(model.functions[key].graph)
    for key in [key for key in model.functions if key not in called]:
        del model.functions[key]
