"""Select the tensors of a model that are trained."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.scopes import ancestors, graphs_of, walk
from onward.message_text import list_names, suggest_names
from onward.passes.exporters.constant_weights import (
    is_named_parameter,
    lift_constant_weights,
)
from onward.passes.exporters.provenance import Provenance
from onward.passes.exporters.restore_parameters import Guesses, separate_and_tie
from onward.passes.normalize import name_values, sort_nodes
from onward.passes.pipelines import PREPARE

_STATISTICS = (3, 4)  # of BatchNormalization's inputs
# inputs at which a tensor of one element is a parameter, not a constant of a formula
_BIASES = {"Gemm": (1, 2), "Conv": (2,), "ConvTranspose": (2,), "PRelu": (1,)}


def remove_weight_inputs(model: ir.Model) -> ir.Model:
    """Remove initializers from the graph inputs, in place: a training step feeds them itself."""
    inputs = model.graph.inputs
    inputs[:] = [value for value in inputs if not value.is_initializer()]
    return model


def unique_initializer_names(model: ir.Model) -> ir.Model:
    """Give each initializer a unique name, in place, as PREPARE does.

    Two branches of an If may each have an initializer with the same name.
    """
    values = initializers(model)
    if len({value.name for value in values}) == len(values):
        return model
    for value in values:  # a tensor is renamed with its value, and values may share it
        tensor = value.const_value
        if tensor is not None:
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
    return PREPARE(model) if model.functions else name_values(sort_nodes(model))


def restore_parameters(
    model: ir.Model,
    named: Collection[str],
    separate: Collection[str] = (),
    tied: Sequence[Sequence[str]] | None = None,
) -> Guesses:
    """Make all weights uniquely named initializers, and restore them as `restore` does, in place.

    Constants that the user has `named` are weights as well.
    """
    unique_initializer_names(lift_constant_weights(remove_weight_inputs(model), named))
    return separate_and_tie(model, separate, tied)


def initializers(model: ir.Model) -> list[ir.Value]:
    """The initializers of a model and of its subgraphs."""
    return [value for graph in graphs_of(model) for value in graph.initializers.values()]


def weights(model: ir.Model, among: Collection[ir.Value] | None = None) -> list[str]:
    """The float initializers of a model (of `among`), without BatchNormalization's statistics.

    The ratio of a Dropout is none either.
    """
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
        if value.dtype in FLOATS and value not in statistics and not _is_ratio(value)
        if among is None or value in among
    ]
    return list(dict.fromkeys(found))


def _is_ratio(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(use.node.op_type == "Dropout" and use.idx == 1 for use in uses)


def select(
    model: ir.Model,
    known: Sequence[str],
    loss: ir.Value,
    trainable: Sequence[str] | None,
    frozen: Sequence[str],
) -> list[str]:
    """The names of the parameters: those in `trainable`, or all that are likely parameters."""
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
        chosen = [name for name in likely_parameters(model, known, [loss]) if name not in kept]
    if not chosen:
        raise nothing_to_train(known)
    return chosen


def nothing_to_train(known: Sequence[str]) -> OptionError:
    return OptionError(
        "there is nothing to train: no float weight is left that the loss depends on\n"
        f"the model's weights are {list_names(known)}"
    )


def likely_parameters(
    model: ir.Model, known: Collection[str], results: Collection[ir.Value]
) -> list[str]:
    """The weights that are parameters and that the results depend on.

    The exporter's metadata decides, if there is any; else all weights of more than one element.
    """
    provenance, needed = Provenance(model), ancestors(model.graph, results)
    found = []
    for value in initializers(model):
        if value.name in known and value in needed:
            is_parameter = provenance.is_parameter(value)
            if is_parameter or (is_parameter is None and not _is_number(value)):
                found.append(str(value.name))
    return found


def batch_norms(model: ir.Model, patterns: Sequence[str]) -> list[str]:
    """The BatchNormalization nodes whose names or outputs match patterns."""
    if not patterns:
        return []
    nodes = [node for node in walk(model.graph) if node.op_type == "BatchNormalization"]
    nodes = [node for node in nodes if node.domain == ""]
    names = [name for n in nodes for name in (n.name, n.outputs[0].name) if name]
    return matching(names, patterns, "frozen_batch_norms", "BatchNormalization")


def matching(
    known: Collection[str], patterns: Sequence[str], field: str, kind: str = "weight"
) -> list[str]:
    """The names that match a pattern; each pattern must match one."""
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not names:
            raise OptionError(
                f"{field}: {pattern!r} matches no {kind} of the model\n"
                f"patterns are written like 'encoder.*'; {suggest_names(pattern, known)}"
            )
        found.update(dict.fromkeys(names))
    return list(found)


def _is_number(value: ir.Value) -> bool:
    """Whether a weight is a constant of a formula: one element, and not a bias."""
    if value.shape is None or math.prod(value.shape.numpy()) > 1 or is_named_parameter(value):
        return False
    return not value.shape or not any(_is_bias(node, index) for node, index in value.uses())


def _is_bias(node: ir.Node, index: int) -> bool:
    if node.op_type == "Add":
        other = node.inputs[1 - index]
        maker = None if other is None else other.producer()
        return maker is not None and maker.op_type == "MatMul"
    return index in _BIASES.get(node.op_type, ())
