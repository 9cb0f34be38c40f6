"""Select the weights that artifacts train, by their names before the export."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.gradients.model import reached
from onward.message_text import list_names, suggest_names
from onward.passes.exporters.exporter_warnings import RECIPE
from onward.passes.training_mode import separate_statistics
from onward.programs.select import likely_parameters, restore_parameters, weights

Groups = Sequence[Sequence[str]] | None  # tied names; None: as the model ties them

log = logging.getLogger("onward")


def weight_names(model: ir.Model, tied: Groups = None) -> list[str]:
    """The weights of a model, those of branches included; the model is changed."""
    restore_parameters(model, (), (), tied)
    return weights(separate_statistics(model))


def trainable_weights(
    model: ir.Model, loss: str, known: Collection[str], tied: Groups = None
) -> list[str]:
    """The known weights that a session would train by default; the model is changed."""
    names = {*weight_names(model, tied)}.intersection(known)
    made = [value for node in model.graph for value in node.outputs if value.name == loss]
    worth = likely_parameters(model, names, made)
    return reached(model, loss, worth) if worth else []


def check_names(model: ir.Model, trainable: Collection[str], frozen: Collection[str]) -> None:
    """Refuse trainable names that the model does not have; warn of such frozen names."""
    graph = model.graph
    made = {str(value.name): node for node in graph for value in node.outputs}
    known = {*graph.initializers, *made, *(str(value.name) for value in graph.inputs)}
    missing = [name for name in trainable if name not in known]
    if missing:
        what = "no value of this name" if len(missing) == 1 else "no values of these names"
        hint = suggest_names(missing[0], graph.initializers, "its parameters are")
        if model.producer_name == "pytorch":
            hint += f"; torch merges, folds and renames parameters unless it exports with {RECIPE}"
        raise OptionError(
            f"{list_names(missing)} cannot require a gradient: the model has {what}\n{hint}"
        )
    for name in trainable:
        node = made.get(name)
        source = node.inputs[0] if node is not None and node.op_type == "Identity" else None
        if source is not None and source.is_initializer():
            raise OptionError(
                f"{name!r} cannot be trained: it is a copy of {source.name!r} by Identity\n"
                f"train {source.name!r} instead"
            )
    unknown = [name for name in frozen if name not in known]
    if unknown:  # which the peer lets pass
        hint = suggest_names(unknown[0], graph.initializers)
        log.warning("frozen_params: the model has no %s; %s", list_names(unknown), hint)
