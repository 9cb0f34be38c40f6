"""Where a model's tensors come from, by what torch's exporter has written into its metadata.

torch.onnx.export (dynamo=True) leaves the signature of the exported program with the graph, a line
for each tensor (`p_fc_weight: PARAMETER target='fc.weight'`), its kind with each tensor that it
kept, and, with each that it computed while it optimised, the names of those that it is made from.
Each node says which call of the program it was, with its arguments (`%p_fc_weight`).
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Collection

import onnx_ir as ir

from onward.graph.scopes import graphs_of, walk
from onward.names import list_names
from onward.passes.exporters.merged_parameters import is_uniform

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SOURCES = "pkg.onnxscript.optimizer.folded_from"
CALL = "pkg.torch.onnx.fx_node"
_TENSOR = re.compile(r"^(\w+): ([A-Z_]+) target='([^']+)'", re.MULTILINE)
_ARGUMENT = re.compile(r"%(\w+)")

log = logging.getLogger("onward")


class Provenance:
    """What is said of the tensors of one model; of most models, nothing."""

    def __init__(self, model: ir.Model) -> None:
        signature = _TENSOR.findall(model.graph.metadata_props.get(_SIGNATURE, ""))
        self._kinds = {name: kind for _, kind, name in signature}
        self._initializers = model.graph.initializers
        self.parameters = {name: call for call, kind, name in signature if kind == "PARAMETER"}

    def origins(self, value: ir.Value) -> set[str]:
        """The parameters that an initializer is, or has its numbers from."""
        found = self.parameters.keys() & {str(value.name), *sources(value)}
        return {name for name in found if name == value.name or not self._is_fill(value, name)}

    def is_parameter(self, value: ir.Value) -> bool | None:
        """Whether an initializer is a parameter, or made from some; None: nothing is said."""
        kind = value.metadata_props.get(_KIND, self._kinds.get(str(value.name)))
        if kind is None and sources(value) and self.parameters:
            return bool(self.origins(value))
        return None if kind is None else kind == "PARAMETER"

    def _is_fill(self, value: ir.Value, name: str) -> bool:
        """Whether no more than a parameter's shape is in a tensor: zeros like it."""
        source = self._initializers.get(name)
        return source is not None and is_uniform(value) and not is_uniform(source)


def sources(value: ir.Value) -> list[str]:
    """The names of the tensors that the exporter has made this one from."""
    try:
        said = ast.literal_eval(value.metadata_props.get(SOURCES, "[]"))
    except (ValueError, SyntaxError):
        return []
    return [str(each) for each in said] if isinstance(said, list) else []


def arguments(node: ir.Node) -> list[str]:
    """The names that the program's call, which a node was part of, was made with."""
    return list(dict.fromkeys(_ARGUMENT.findall(node.metadata_props.get(CALL, ""))))


def gone(model: ir.Model) -> dict[str, str]:
    """Parameters that no initializer is or comes from, and their names in calls."""
    left = dict(Provenance(model).parameters)
    for graph in graphs_of(model):
        for name, value in graph.initializers.items():
            for each in (str(name), *sources(value)):
                left.pop(each, None)
    return left


def warn_of_changes(model: ir.Model, names: Collection[str]) -> None:
    """Say which parameters will not be trained as they were in torch, for the exporter's changes.

    `names` are the initializers to train: what became of the others does not matter.
    """
    trained = set(names)
    changes = {
        "gone or merged with others": _missing(model, trained),
        "in several tensors, each trained by itself": _copied(model, trained),
    }
    said = "; ".join(f"{what}: {list_names(which)}" for what, which in changes.items() if which)
    if said:
        log.warning("torch's exporter changed parameters (%s); export with optimize=False", said)


def _missing(model: ir.Model, names: Collection[str]) -> list[str]:
    """Parameters that are gone, though what reads one of the names was called with them.

    Those that the program never used, or used under another name, are not missed.
    """
    left = gone(model)
    if not left:
        return []
    readers = (
        node
        for node in walk(model.graph)
        if any(value is not None and value.name in names for value in node.inputs)
    )
    used = {argument for node in readers for argument in arguments(node)}
    return [name for name, call in left.items() if call in used]


def _copied(model: ir.Model, names: Collection[str]) -> list[str]:
    """Parameters that several of the named initializers are or come from."""
    said = Provenance(model)
    counts = dict.fromkeys(said.parameters, 0)
    for graph in graphs_of(model) if counts else ():
        for value in graph.initializers.values():
            for each in said.origins(value) if value.name in names else ():
                counts[each] += 1
    return [name for name, count in counts.items() if count > 1]
