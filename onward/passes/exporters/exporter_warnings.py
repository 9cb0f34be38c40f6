"""Warn about changes of an exporter that training cannot undo.

Each warning is one line of the log, with the names, and how to export for training.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onward.graph.scopes import walk
from onward.message_text import list_names
from onward.passes.exporters.merged_parameters import is_from_torchscript, is_uniform
from onward.passes.exporters.provenance import Provenance, warn_of_changes
from onward.passes.exporters.restore_parameters import Guesses
from onward.passes.value_facts import input_of

_FOLDED = re.compile(r"onnx::Conv_(\d+)")
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_SCOPES = "pkg.torch.onnx.name_scopes"
_DROPOUT = re.compile(r"torch\.nn\.modules\.dropout\.\w*Dropout")
RECIPE = "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"

log = logging.getLogger("onward")


def warn_of_exporter(model: ir.Model, names: Collection[str], guesses: Guesses) -> None:
    """Log what will not be trained as it was before the export.

    `names` are the initializers to train; changes of others do not matter.
    """
    trained = set(names)
    warn_of_changes(model, trained)
    _warn_of_guesses(guesses, trained)
    folded = folded_batch_norms(model, trained)
    if folded:
        log.warning(
            "BatchNormalization was folded into convolutions when the model was exported (%s): it "
            "is not trained; export with torch.onnx.export(..., dynamo=False, %s)",
            list_names(folded),
            RECIPE,
        )
    shared = shared_by_layers(model, trained)
    if shared:
        log.warning(
            "layers share tensors that hold one number throughout (%s): an exporter has merged "
            "them, and each is trained as one parameter; export without merging equal weights",
            list_names(shared),
        )
    idle = idle_dropouts(model)
    if idle:
        log.warning(
            "Dropout drops nothing (%s): the model was exported in eval mode, or with p=0; call "
            "model.train() before torch.onnx.export to train with it",
            list_names(idle),
        )


def _warn_of_guesses(guesses: Guesses, trained: Collection[str]) -> None:
    separate = _pairs(guesses.separate, trained)
    if separate:
        log.warning(
            "weights hold the same numbers (%s), and the model does not tell whether they were one "
            "parameter: they are trained separately; TrainingOptions(tied=[[...]]) ties them",
            separate,
        )
    tied = _pairs(guesses.tied, trained)
    if tied:
        log.warning(
            "weights hold the same numbers, transposed (%s), and the model does not tell whether "
            "they were one parameter: they are trained as one; TrainingOptions(tied=[]) separates "
            "them",
            tied,
        )


def _pairs(guessed: Mapping[str, str], trained: Collection[str]) -> str:
    found = [(a, b) for b, a in guessed.items() if a in trained or b in trained]
    return list_names(f"{a} = {b}" for a, b in found).replace("'", "") if found else ""


def folded_batch_norms(model: ir.Model, names: Collection[str]) -> list[str]:
    """The convolutions into which torch's older exporter has folded BatchNormalization.

    It names their new weight and bias by consecutive numbers.
    """
    found = []
    for node in walk(model.graph) if is_from_torchscript(model) else ():
        values = (input_of(node, 1), input_of(node, 2)) if node.op_type == "Conv" else ()
        numbers = [_FOLDED.fullmatch(str(value.name)) for value in values if value is not None]
        if len(numbers) == 2 and None not in numbers:
            weight, bias = (int(number[1]) for number in numbers if number)
            if bias == weight + 1 and any(v is not None and v.name in names for v in values):
                found.append(str(node.name))
    return found


def shared_by_layers(model: ir.Model, names: Collection[str]) -> list[str]:
    """Trained tensors, all elements equal, that layers with different weights share.

    A model does not share the zeros of a bias between layers; tools merge equal tensors.
    """
    if Provenance(model).parameters:  # the metadata shows what was merged
        return []
    found = []
    for name in names:
        value = model.graph.initializers.get(name)
        if value is None or len(value.uses()) < 2 or not is_uniform(value):
            continue
        if value.const_value is None or value.const_value.size < 2:
            continue
        layers = {frozenset(_companions(node, value, names)) for node, _ in value.uses()}
        if len(layers) > 1 and frozenset() not in layers:
            found.append(name)
    return found


def _companions(node: ir.Node, value: ir.Value, names: Collection[str]) -> list[str]:
    """The other trained tensors of a layer: inputs of a node, and of the nodes before it."""
    makers = [each.producer() for each in node.inputs if each is not None]
    read = [each for maker in (node, *makers) if maker is not None for each in maker.inputs]
    return [str(v.name) for v in read if v is not None and v is not value and v.name in names]


def idle_dropouts(model: ir.Model) -> list[str]:
    """Dropout modules of torch that were exported as Identity.

    None if the model has a Dropout: then the others have ratio 0.
    """
    found: list[str] = []
    for node in walk(model.graph):
        if node.op_type == "Dropout":
            return []
        if node.op_type == "Identity" and _DROPOUT.search(node.metadata_props.get(_CLASSES, "")):
            found.append(_module(node) or str(node.name))
    return list(dict.fromkeys(found))


def _module(node: ir.Node) -> str:
    """The torch module of a node, from the newer exporter's metadata."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    except (ValueError, SyntaxError):
        return ""
    return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
