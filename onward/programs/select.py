"""Which tensors of a model are trained."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import ancestors, graphs_of, walk
from onward.names import near, some
from onward.passes.exporters.constant_weights import (
    FLOATS,
    is_named_parameter,
    lift_constant_weights,
)
from onward.passes.exporters.provenance import Provenance
from onward.passes.exporters.restore_parameters import Guesses, separate_and_tie
from onward.passes.normalize import name_values, sort_nodes
from onward.passes.pipelines import PREPARE

_STATISTICS = (3, 4)  # of BatchNormalization's inputs
# where a single number with an axis is a parameter all the same, by an operator's inputs
_BIASES = {"Gemm": (1, 2), "Conv": (2,), "ConvTranspose": (2,), "PRelu": (1,)}


def free_weights(model: ir.Model) -> ir.Model:
    """Initializers that are listed as inputs too, to be overridden, no longer are, in place.

    Training changes them, and a step feeds them.
    """
    inputs = model.graph.inputs
    inputs[:] = [value for value in inputs if not value.is_initializer()]
    return model


def distinct(model: ir.Model) -> ir.Model:
    """The model with a name of its own for each initializer, in place: those that PREPARE gives.

    Two branches may each have one of the same name.
    """
    values = initializers(model)
    if len({value.name for value in values}) == len(values):
        return model
    for value in values:  # tensors are renamed with their values, and others may have them too
        tensor = value.const_value
        if tensor is not None:
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
    return PREPARE(model) if model.functions else name_values(sort_nodes(model))


def restore_parameters(
    model: ir.Model,
    named: Collection[str],
    apart: Collection[str] = (),
    tied: Sequence[Sequence[str]] | None = None,
) -> Guesses:
    """All weights as initializers with names of their own, restored as `restore` does, in place.

    Constants that are `named` by the user are weights as well.
    """
    distinct(lift_constant_weights(free_weights(model), named))
    return separate_and_tie(model, apart, tied)


def initializers(model: ir.Model) -> list[ir.Value]:
    """The initializers of a model and of its subgraphs."""
    return [value for graph in graphs_of(model) for value in graph.initializers.values()]


def weights(model: ir.Model, among: Collection[ir.Value] | None = None) -> list[str]:
    """The float initializers of a model, or some, but for BatchNormalization's statistics."""
    statistics = {
        value
        for node in walk(model.graph)
        if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")
        for index, value in enumerate(node.inputs)
        if index in _STATISTICS
    }
    found = [
        str(value.name)
        for value in initializers(model)
        if value.dtype in FLOATS and value not in statistics and (among is None or value in among)
    ]
    return list(dict.fromkeys(found))


def select(
    model: ir.Model,
    known: Sequence[str],
    loss: ir.Value,
    trainable: Sequence[str] | None,
    frozen: Sequence[str],
) -> list[str]:
    """The names of the parameters: what is asked for, or all that are worth it."""
    kept = matching(known, frozen, "frozen")
    if trainable is not None:
        needed = {value.name for value in ancestors(model.graph, [loss])}
        chosen = [name for name in matching(known, trainable, "trainable") if name not in kept]
        idle = [name for name in chosen if name not in needed]
        if idle:
            raise OptionError(
                f"trainable: the loss does not depend on {idle[0]!r}\nleave it out, or freeze it"
            )
    else:
        chosen = [name for name in worth_training(model, known, [loss]) if name not in kept]
    if not chosen:
        raise nothing_to_train(known)
    return chosen


def nothing_to_train(known: Sequence[str]) -> OptionError:
    return OptionError(
        "there is nothing to train: no float weight is left that the loss depends on\n"
        f"the model's weights are {some(known)}"
    )


def worth_training(
    model: ir.Model, known: Collection[str], results: Collection[ir.Value]
) -> list[str]:
    """Those of the weights that are parameters, and that the results depend on.

    Where the exporter says which are, they are those; else all that are more than one number.
    """
    said, needed = Provenance(model), ancestors(model.graph, results)
    found = []
    for value in initializers(model):
        if value.name in known and value in needed:
            is_parameter = said.is_parameter(value)
            if is_parameter or (is_parameter is None and not _is_number(value)):
                found.append(str(value.name))
    return found


def batch_norms(model: ir.Model, patterns: Sequence[str]) -> list[str]:
    """The BatchNormalization nodes that patterns mean, by their names or their outputs'."""
    if not patterns:
        return []
    nodes = [node for node in walk(model.graph) if node.op_type == "BatchNormalization"]
    nodes = [node for node in nodes if node.domain == ""]
    names = [name for n in nodes for name in (n.name, n.outputs[0].name) if name]
    return matching(names, patterns, "frozen_batch_norms", "BatchNormalization")


def matching(
    known: Collection[str], patterns: Sequence[str], field: str, kind: str = "weight"
) -> list[str]:
    """The names that one of the patterns means; each pattern must mean one."""
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not names:
            raise OptionError(
                f"{field}: {pattern!r} is no {kind} of the model\n"
                f"patterns are written like 'encoder.*'; {near(pattern, known)}"
            )
        found.update(dict.fromkeys(names))
    return list(found)


def _is_number(value: ir.Value) -> bool:
    """One number: exporters write constants of formulas so; a bias of one output is none."""
    if value.shape is None or math.prod(value.shape.numpy()) > 1 or is_named_parameter(value):
        return False
    return not value.shape or not any(_is_bias(node, index) for node, index in value.uses())


def _is_bias(node: ir.Node, index: int) -> bool:
    if node.op_type == "Add":
        other = node.inputs[1 - index]
        maker = None if other is None else other.producer()
        return maker is not None and maker.op_type == "MatMul"
    return index in _BIASES.get(node.op_type, ())
