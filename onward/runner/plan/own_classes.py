"""The classes that a classifier names itself, as scikit-learn's converter writes them."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.errors import DataError
from onward.graph.scopes import ancestors
from onward.graph.shapes.ml_operators import DOMAIN
from onward.message_text import suggest_names
from onward.passes.value_facts import attribute, constant, made_by
from onward.runner.plan.target_facts import TargetFacts

Classes = tuple[Any, ...]
UNUSED = "unused "  # and its number: the class of an output that the data has no label for
_NAMES = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
_VIEWS = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")


def own_classes(model: ir.Model) -> Classes:
    """The labels that the model gives for its outputs; () if it gives their numbers, or none."""
    outputs = ancestors(model.graph, model.graph.outputs)  # not labels of classifiers inside it
    nodes = [node for node in model.graph if node.outputs[0] in outputs]
    found = {names for node in nodes if (names := _names(node))}
    names = found.pop() if len(found) == 1 else ()
    return () if names == tuple(range(len(names))) else names


def check_named(own: Classes, facts: TargetFacts) -> None:
    """Refuse texts that are no label of the model: its own labels would be wrong for them."""
    strange = [value for value in facts.values if value not in own]
    if not strange or facts.kind != "text" or not all(isinstance(each, str) for each in own):
        return
    hint = suggest_names(str(strange[0]), own, "its labels are")
    raise DataError(
        f"target {facts.column!r} has {strange[0]!r:.80}, which the model has no label for\n"
        f"write the model's labels into the data: {hint}"
    )


def keep_places(known: Classes, values: Classes) -> Classes:
    """The classes of new data, those that the model knows at the places that they had.

    New ones take the place of an unused output, else of a class that the data does not have.

    >>> keep_places(("cat", "dog", "unused 2"), ("ant", "cat", "dog"))
    ('cat', 'dog', 'ant')
    """
    if not set(known) & set(values):
        return values
    new = [value for value in values if value not in known]
    free = [place for place, value in enumerate(known) if value not in values]
    free.sort(key=lambda place: not str(known[place]).startswith(UNUSED))
    if len(new) > len(free):
        return values
    kept = list(known)
    for place, value in zip(free, new):
        kept[place] = value
    return tuple(kept)


def _names(node: ir.Node) -> Classes:
    """The labels that a node holds: of a classifier, a ZipMap, or a table read by ArgMax."""
    if node.domain == DOMAIN and node.op_type != "ArrayFeatureExtractor":
        for name in _NAMES:
            if labels := attribute(node, name, None):
                return tuple(_plain(each) for each in labels)
    if node.op_type not in ("ArrayFeatureExtractor", "Gather") or len(node.inputs) < 2:
        return ()
    place = node.inputs[1]
    while (view := made_by(place, *_VIEWS)) is not None:
        place = view.inputs[0]
    table = constant(node.inputs[0])
    if made_by(place, "ArgMax") is None or table is None or table.dtype.kind not in "OSUi":
        return ()
    return tuple(_plain(each) for each in table.reshape(-1).tolist())


def _plain(label: Any) -> str | int:
    return label.decode() if isinstance(label, bytes) else label
