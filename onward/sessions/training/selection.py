"""Which tensors of a model are trained."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import ancestors, graphs_of, walk
from onward.names import near, some

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_STATISTICS = (3, 4)  # of BatchNormalization's inputs


def weights(model: ir.Model) -> list[str]:
    """The float tensors that a model carries by name, but for BatchNormalization's statistics."""
    statistics = {
        value.name
        for node in walk(model.graph)
        if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")
        for index, value in enumerate(node.inputs)
        if index in _STATISTICS and value is not None
    }
    found = [
        str(name)
        for graph in graphs_of(model)
        for name, value in graph.initializers.items()
        if value.dtype in FLOATS and name not in statistics
    ]
    return list(dict.fromkeys(found))


def select(
    model: ir.Model,
    known: Sequence[str],
    loss: ir.Value,
    trainable: Sequence[str] | None,
    frozen: Sequence[str],
) -> list[str]:
    """The names of the parameters: what is asked for, or all that the loss depends on."""
    needed = {value.name for value in ancestors(model.graph, [loss])}
    kept = matching(known, frozen, "frozen")
    if trainable is not None:
        chosen = [name for name in matching(known, trainable, "trainable") if name not in kept]
        idle = [name for name in chosen if name not in needed]
        if idle:
            raise OptionError(
                f"trainable: the loss does not depend on {idle[0]!r}\nleave it out, or freeze it"
            )
    else:
        chosen = [name for name in known if name in needed and name not in kept]
        chosen = [name for name in chosen if not _is_number(model, name)]
    if not chosen:
        raise OptionError(
            "there is nothing to train: no float weight is left that the loss depends on\n"
            f"the model's weights are {some(known)}"
        )
    return chosen


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


def _is_number(model: ir.Model, name: str) -> bool:
    """One number: exporters write constants of formulas so."""
    for graph in graphs_of(model):
        if name in graph.initializers:
            shape = graph.initializers[name].shape
            return shape is not None and math.prod(shape.numpy()) <= 1
    return False
